-- Remember that requests end without running: nothing of them waits any more, and what they held flows back.
-- ARGV[1] also {..., [], whys: [why it ended], [whether also what another run of the record has reserved]}
-- Returns also, per id, whether this call ended it: of two runs of one record only one may answer.
local window = math.ceil(window_s)
local read, firsts = read_ids(), {}
for n, why in ipairs(request[5]) do
  local key = KEYS[n + 1]
  local seen = latest(key, read[n + 1])
  local state = seen.state
  firsts[n] = state ~= 'settled' and state ~= 'finished' and (state ~= 'reserved' or request[6][n])
  if firsts[n] then
    if state == 'reserved' or state == 'seen' then
      release(seen, state, state == 'reserved' and tonumber(seen.units) or 0)
      ended[#ended + 1] = id_of(key)
    end
    redis.call('HSET', key, 'state', 'finished', 'at', seen.at or now_s, 'why', why, 'ended', now_s)
    redis.call('EXPIRE', key, window)
  end
end
return cmsgpack.pack({now_s, write(), firsts})
