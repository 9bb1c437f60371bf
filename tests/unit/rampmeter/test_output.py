import json

from rampmeter.output import PLAIN_EVERY_S, Output
from tests.support.clock import FakeClock


def test_result_is_one_line_on_stdout_and_the_rest_is_not(capsys):
    output = Output(FakeClock(), as_json=True)
    output.say("working")
    output.text("part of an answer")
    output.table("t", ("a",), [("b",)])
    output.result({"lost": 0})
    said = capsys.readouterr()
    assert json.loads(said.out) == {"lost": 0}
    assert said.out.count("\n") == 1
    assert said.err == "working\n"


def test_progress_off_a_terminal_is_a_plain_line_every_few_seconds(capsys):
    clock = FakeClock()
    with Output(clock).progress("replay", 3) as advance:
        advance(0, "sent")
        clock.advance(PLAIN_EVERY_S)
        advance(1, "sent")
        advance(2, "sent")
        advance(3, "sent")
        advance(3, "sent")
    assert capsys.readouterr().err == "replay: 1 of 3 sent\nreplay: 3 of 3 sent\n"


def test_no_escape_codes_off_a_terminal(capsys):
    output = Output(FakeClock())
    output.table("title", ("a", "b"), [("[bold]1[/]", "2")])
    output.say("[red]plain[/red]")
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err
    assert "[red]plain[/red]" in said.err


def test_a_table_shows_words_of_others_as_they_are_and_names_to_their_end(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    name = "a-name-that-is-to-be-typed-again-and-is-long"
    Output(FakeClock()).table("", ("name", "what"), [(name, "[/red]"), ("[bold]b", "words " * 20)])
    shown = capsys.readouterr().out
    assert all(word in shown for word in (name, "[/red]", "[bold]b", "words"))
