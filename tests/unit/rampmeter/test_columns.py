from rampmeter import columns


def test_words_stand_left_and_numbers_right_and_lines_end_with_their_text():
    assert columns.render(("NO", "WHAT"), [("1", "a"), ("1000", "longer")], right=(0,)).splitlines() == [
        "  NO  WHAT",
        "   1  a",
        "1000  longer",
    ]


def test_nothing_is_cut():
    assert "x" * 300 in columns.render(("A",), [("x" * 300,)])


def test_what_a_terminal_would_obey_is_shown_instead():
    shown = columns.render(("A",), [("a\x1b[2J\r\n\x00\u202eé",)])
    assert shown == "A\na\\x1b[2J\\r\\n\\x00\\u202eé"
