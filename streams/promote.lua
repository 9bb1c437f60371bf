-- Mark the ids of a batch that may be promoted: neither claimed nor promoted before.
-- KEYS    1..N the claims, N+1..2N the marks
-- ARGV[1] how long a mark lives, in milliseconds
-- Returns a 0 or 1 per id.
local n = #KEYS / 2
local answers = {}
for i = 1, n do
  local fresh = 0
  if redis.call('EXISTS', KEYS[i]) == 0 and redis.call('SET', KEYS[n + i], '1', 'NX', 'PX', ARGV[1]) then
    fresh = 1
  end
  answers[i] = fresh
end
return answers
