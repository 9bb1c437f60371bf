-- Who runs which request id.  Written only by gpu_consumers; times are the server's.
-- KEYS: claim hashes, and at last the ledger's set of expiries and what is known of this memory.
-- ARGV: verb, owner, lease in ms, time to live in ms, what stands before the id in a claim's key, since when the caller
-- knows this memory (empty: it never saw one), for how long after a loss an owner may not have told its claims again in
-- ms, then what the verb needs per claim.
local verb, owner = ARGV[1], ARGV[2]
local lease_ms, ttl_ms, prefix = tonumber(ARGV[3]), ARGV[4], ARGV[5]
local known, untold_ms = ARGV[6], tonumber(ARGV[7])
local FIRST = 7
local CLAIMS = #KEYS - 2
local EXPIRIES, MEMORY = KEYS[#KEYS - 1], KEYS[#KEYS]
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local now, lease_until = string.format('%.0f', now_ms), string.format('%.0f', now_ms + lease_ms)

-- What was claimed or answered before this memory began is not in it.  It was lost if anyone knew another one; otherwise
-- this is the first one, or all who knew another are gone too.
local since, lost = unpack(redis.call('HMGET', MEMORY, 'since_ms', 'lost'))
if not since or (known ~= '' and known ~= since and lost == '0') then
  since, lost = since or now, known ~= '' and '1' or '0'
  redis.call('HSET', MEMORY, 'since_ms', since, 'lost', lost)
end
local since_ms = tonumber(since)

local alive = {}

local function take(key, since, attempt)
  alive[#alive + 1] = string.sub(key, #prefix + 1)
  redis.call('HSET', key, 'state', 'running', 'owner', owner, 'since_ms', since,
             'attempt', attempt, 'lease_until_ms', lease_until)
  redis.call('PEXPIRE', key, ttl_ms)
end

-- Needs the attempt and the earliest time at which the id can have been claimed.
-- m mine, f mine but it may have been answered before this memory began, t takeover (its since_ms and how often it was
-- taken over follow in the answer), h held by a live other, or maybe by one that has not told it again, d done
local function claim(key, i, answer)
  local attempt, from_ms = ARGV[FIRST + 2 * i - 1], tonumber(ARGV[FIRST + 2 * i])
  local c = redis.call('HMGET', key, 'state', 'owner', 'since_ms', 'lease_until_ms', 'takeovers')
  local is_forgotten = from_ms <= since_ms
  local mine = is_forgotten and 'f' or 'm'
  if not c[1] then
    if is_forgotten and lost == '1' and now_ms < since_ms + untold_ms then
      return 'h'
    end
    take(key, is_forgotten and string.format('%.0f', from_ms) or now, attempt)
    return mine
  elseif c[1] == 'done' then
    return 'd'
  elseif c[2] ~= owner and tonumber(c[4]) > now_ms then
    return 'h'
  end
  take(key, c[3], attempt)
  local takeovers = tonumber(c[5] or '0')
  if c[2] ~= owner then
    takeovers = redis.call('HINCRBY', key, 'takeovers', 1)
  elseif takeovers == 0 then
    return mine  -- the answer to an earlier call was lost
  end
  answer[#answer + 1] = c[3]
  answer[#answer + 1] = string.format('%.0f', takeovers)
  return 't'
end

-- 1 still ours, 0 lost.  A claim that vanished with Redis' memory is put back: we do run it.  A lease never gets
-- shorter: what holds it for longer is an answer that may be under way.
local function renew(key, i)
  local c = redis.call('HMGET', key, 'state', 'owner', 'lease_until_ms')
  if not c[1] then
    take(key, now, ARGV[FIRST + i])
  elseif c[1] ~= 'running' or c[2] ~= owner then
    return '0'
  else
    alive[#alive + 1] = string.sub(key, #prefix + 1)
    local longest = string.format('%.0f', math.max(tonumber(c[3]), now_ms + lease_ms))
    redis.call('HSET', key, 'lease_until_ms', longest)
    redis.call('PEXPIRE', key, ttl_ms)
  end
  return '1'
end

-- The answer is in the log, so this is the truth whoever holds the claim; the first answer stays.
local function done(key, i)
  if redis.call('HGET', key, 'state') ~= 'done' then
    local at = FIRST + 3 * (i - 1)
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

-- Taken over and not begun: free for anyone at once, with its past, and this takeover does not count.
local function defer(key)
  local c = redis.call('HMGET', key, 'state', 'owner')
  if c[1] == 'running' and c[2] == owner then
    redis.call('HSET', key, 'owner', '', 'lease_until_ms', '0')
    redis.call('HINCRBY', key, 'takeovers', -1)
  end
  return '1'
end

local act = ({claim = claim, renew = renew, done = done, release = release, defer = defer})[verb]
local marks, answer = {}, {'', since, lost}
for i = 1, CLAIMS do
  marks[i] = act(KEYS[i], i, answer)
end

-- Work that is alive keeps its reservation.  XX: an id that holds none is not in the set, and nothing changes.
local until_s = string.format('%.3f', (now_ms + ttl_ms) / 1000)
for first = 1, #alive, 500 do
  local members = {}
  for i = first, math.min(first + 499, #alive) do
    members[#members + 1] = until_s
    members[#members + 1] = alive[i]
  end
  redis.call('ZADD', EXPIRIES, 'XX', 'GT', unpack(members))
end
answer[1] = table.concat(marks)
return answer
