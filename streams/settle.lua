-- Settle finished requests: give back what was reserved and not used, charge what was used beyond it.
-- KEYS    the memory of each id
-- ARGV[1] JSON {window_ms, units: [real cost per id]}
-- Returns JSON: per id "settled", "repeat" (already settled) or "unknown" (no reservation is left).
-- A level may fall below zero: the debt is paid by the refill before anyone else is admitted.
-- A bucket lives until it would be full again, so a debt outlasts any idle time.
local request = cjson.decode(ARGV[1])
local time = redis.call('TIME')
local now_s = tonumber(time[1]) + tonumber(time[2]) / 1e6
local answers = {}

for n, key in ipairs(KEYS) do
  local seen = redis.call('HMGET', key, 'state', 'units', 'held')
  if seen[1] == 'settled' then
    answers[n] = 'repeat'
  elseif seen[1] ~= 'reserved' then
    answers[n] = 'unknown'
  else
    local back = tonumber(seen[2]) - request.units[n]
    for _, bucket_key in ipairs(cjson.decode(seen[3])) do
      local stored = redis.call('HMGET', bucket_key, 'level', 'as_of', 'cap', 'refill')
      if stored[1] then
        local cap, refill = tonumber(stored[3]), tonumber(stored[4])
        local level = math.min(cap, tonumber(stored[1]) + math.max(0, now_s - tonumber(stored[2])) * refill)
        level = math.min(cap, level + back)
        redis.call('HSET', bucket_key, 'level', tostring(level), 'as_of', string.format('%.6f', now_s))
        redis.call('PEXPIRE', bucket_key, math.ceil(1000 * (60 + (cap - level) / refill)))
      end
    end
    redis.call('HSET', key, 'state', 'settled')
    redis.call('PEXPIRE', key, request.window_ms)
    answers[n] = 'settled'
  end
end
return cjson.encode(answers)
