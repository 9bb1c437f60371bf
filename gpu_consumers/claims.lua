-- Who runs which request id.  Written only by gpu_consumers; times are the server's.
-- KEYS: claim hashes.  ARGV: verb, owner, lease in ms, time to live in ms, then what the verb needs per key.
local verb, owner = ARGV[1], ARGV[2]
local lease_ms, ttl_ms = tonumber(ARGV[3]), ARGV[4]
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local now, lease_until = string.format('%.0f', now_ms), string.format('%.0f', now_ms + lease_ms)

local function take(key, since, attempt)
  redis.call('HSET', key, 'state', 'running', 'owner', owner, 'since_ms', since,
             'attempt', attempt, 'lease_until_ms', lease_until)
  redis.call('PEXPIRE', key, ttl_ms)
end

-- m mine, t takeover (its since_ms follows in the answer), h held by a live other, d done
local function claim(key, i, answer)
  local c = redis.call('HMGET', key, 'state', 'owner', 'since_ms', 'lease_until_ms')
  if not c[1] then
    take(key, now, ARGV[4 + i])
    return 'm'
  elseif c[1] == 'done' then
    return 'd'
  elseif c[2] == owner then
    take(key, c[3], ARGV[4 + i])  -- the answer to an earlier call was lost
    return 'm'
  elseif tonumber(c[4]) > now_ms then
    return 'h'
  end
  take(key, c[3], ARGV[4 + i])
  answer[#answer + 1] = c[3]
  return 't'
end

-- 1 still ours, 0 lost.  A claim that vanished with Redis' memory is put back: we do run it.
local function renew(key, i)
  local c = redis.call('HMGET', key, 'state', 'owner')
  if not c[1] then
    take(key, now, ARGV[4 + i])
  elseif c[1] ~= 'running' or c[2] ~= owner then
    return '0'
  else
    redis.call('HSET', key, 'lease_until_ms', lease_until)
    redis.call('PEXPIRE', key, ttl_ms)
  end
  return '1'
end

-- The answer is in the log, so this is the truth whoever holds the claim; the first answer stays.
local function done(key, i)
  if redis.call('HGET', key, 'state') ~= 'done' then
    local at = 4 + 3 * (i - 1)
    redis.call('HSET', key, 'state', 'done', 'owner', owner, 'lease_until_ms', '0',
               'topic', ARGV[at + 1], 'partition', ARGV[at + 2], 'offset', ARGV[at + 3])
    redis.call('PEXPIRE', key, ttl_ms)
  end
  return '1'
end

local function release(key)
  local c = redis.call('HMGET', key, 'state', 'owner')
  if c[1] == 'running' and c[2] == owner then
    redis.call('DEL', key)
  end
  return '1'
end

local act = ({claim = claim, renew = renew, done = done, release = release})[verb]
local marks, answer = {}, {''}
for i, key in ipairs(KEYS) do
  marks[i] = act(key, i, answer)
end
answer[1] = table.concat(marks)
return answer
