-- Put back the levels of buckets that Redis lost, and mark the ledger as whole.
-- KEYS[1] the mark, KEYS[2..] the buckets
-- ARGV[1] MessagePack {marks, [[bucket, refill, cap, warm_s, paced, level, as_of_s]]}; `marks` with the last portion
-- What is newer stays.  A bucket that was known once is as warm as it gets.
for n, b in ipairs(request[2]) do
  local as_of_s = math.min(now_s, b[7])  -- of a server whose clock was ahead of this one's
  local stored = redis.call('HGET', KEYS[n + 1], 'as_of')
  if not stored or tonumber(stored) < as_of_s then
    store(KEYS[n + 1], {level = b[6], as_of = as_of_s, born = 0, refill = b[2], cap = b[3], warm = b[4], paced = b[5]})
  end
end
if request[1] then
  redis.call('SET', KEYS[1], exact(now_s), 'NX')
end
return 'whole'
