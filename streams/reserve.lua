-- Reserve the cost of a micro-batch: for each ask all its levels or none.
-- KEYS    1..L the buckets, L+1..L+A the memory of each ask's id
-- ARGV[1] JSON {window_ms, levels: [{refill, cap}], asks: [{origin, reply, units, levels: [bucket index], patience_s, closed}]}
-- Returns JSON: one of {s="paid"}, {s="short", level, wait_s}, {s="never", level, cap}, {s="closed"}
--         (`level` is the place among the ask's levels),
--         {s="reserved"|"rejected"|"settled", at_s, why} for an id seen before from the same origin; `why` is the answer
--         that led to a rejection,
--         {s="repeat", at_s, reply, ended} for an id seen before from another origin; `reply` is where the first asker is
--         answered, `ended` whether that can have happened.
-- A refused ask changes no bucket.  Time is the server's.
local request = cjson.decode(ARGV[1])
local time = redis.call('TIME')
local now_s = tonumber(time[1]) + tonumber(time[2]) / 1e6
local buckets = {}

for i, level in ipairs(request.levels) do
  local stored = redis.call('HMGET', KEYS[i], 'level', 'as_of')
  local bucket = {level = level.cap, dirty = false}
  if stored[1] then
    local idle_s = math.max(0, now_s - tonumber(stored[2]))
    bucket.level = math.min(level.cap, tonumber(stored[1]) + idle_s * level.refill)
  end
  buckets[i] = bucket
end

local function first_short(ask)
  local worst
  for n, i in ipairs(ask.levels) do
    local level = request.levels[i]
    if ask.units > level.cap then
      return {s = 'never', level = n, cap = level.cap}
    end
    local missing = ask.units - buckets[i].level
    if missing > 0 then
      local wait_s = missing / level.refill
      if not worst or wait_s > worst.wait_s then
        worst = {s = 'short', level = n, wait_s = wait_s}
      end
    end
  end
  return worst
end

local answers = {}
for a, ask in ipairs(request.asks) do
  local key = KEYS[#request.levels + a]
  local seen = redis.call('HMGET', key, 'origin', 'state', 'at', 'reply', 'why')
  local answer
  if seen[1] and seen[1] ~= ask.origin then
    local ended = seen[2] == 'rejected' or seen[2] == 'settled'
    answer = {s = 'repeat', at_s = tonumber(seen[3]), reply = seen[4], ended = ended}
  elseif seen[2] == 'reserved' or seen[2] == 'rejected' or seen[2] == 'settled' then
    answer = {s = seen[2], at_s = tonumber(seen[3]), why = seen[5] and cjson.decode(seen[5])}
  else
    local at = seen[3] or tostring(now_s)
    if ask.closed then
      answer = {s = 'closed'}
      redis.call('HSET', key, 'origin', ask.origin, 'reply', ask.reply, 'state', 'rejected', 'at', at)
    else
      answer = first_short(ask)
      if not answer then
        answer = {s = 'paid'}
        local held = {}
        for n, i in ipairs(ask.levels) do
          buckets[i].level = buckets[i].level - ask.units
          buckets[i].dirty = true
          held[n] = KEYS[i]
        end
        redis.call('HSET', key, 'origin', ask.origin, 'reply', ask.reply, 'state', 'reserved', 'at', at,
          'units', tostring(ask.units), 'held', cjson.encode(held))
      else
        local ends = answer.s == 'never' or answer.wait_s > ask.patience_s
        redis.call('HSET', key, 'origin', ask.origin, 'reply', ask.reply, 'state', ends and 'rejected' or 'seen',
          'at', at)
        if ends then
          redis.call('HSET', key, 'why', cjson.encode(answer))
        end
      end
    end
    redis.call('PEXPIRE', key, request.window_ms)
  end
  answers[a] = answer
end

for i, level in ipairs(request.levels) do
  if buckets[i].dirty then
    redis.call('HSET', KEYS[i], 'level', tostring(buckets[i].level), 'as_of', string.format('%.6f', now_s),
      'cap', tostring(level.cap), 'refill', tostring(level.refill))
    redis.call('PEXPIRE', KEYS[i], math.ceil(1000 * (60 + (level.cap - buckets[i].level) / level.refill)))
  end
end
return cjson.encode(answers)
