-- Who is next at a spent budget that several share: start-time fair queueing (Goyal, Vin, Cheng, SIGCOMM 1996), in cost.
-- A flow is a tenant on a lane of a pool, its weight the lane's part of the pool times the tenant's part of the lane.  Its
-- tag is what it was given over its weight; the least tag of those that wait is next, and what it wants is kept for it.
-- What the bucket holds beyond goes to others, as far as enough is left to bring all before them up to their tag: so a
-- budget that is not spent knows no turns, and no unit lies idle for one whose turn it is but for `TURN_KEPT_S`.
-- A line exists while somebody waits in it.
local TURN_KEPT_S = 1            -- one that does not ask again within this of the time when it could be paid loses its turn
local TIE = 1e-3                 -- one that comes later is behind those before it
local LINE_KEPT_S = 3600
local lines = {}

-- The line of a bucket: how many wait, the sum of their weights, and its time: the tag of what was given last.
local function line_of(name)
  local line = lines[name]
  if not line then
    local key = TAG .. 'line:' .. name
    line = {key = key, waits = key .. ':waits', given = key .. ':given', count = redis.call('ZCARD', key), weight = 0,
            time = 0}
    line.is_open = line.count > 0
    if line.is_open then
      local s = redis.call('HGET', line.waits, '')
      if s then
        line.weight, line.time = struct.unpack('<dd', s)
      end
      redis.call('ZCARD', line.given)
    end
    lines[name] = line
  end
  return line
end

local function wait_of(line, flow)
  local s = redis.call('HGET', line.waits, flow)
  if s then
    return struct.unpack('<ddd', s)
  end
  return 0, 0, 0
end

local function score(key, flow)
  return tonumber(redis.call('ZSCORE', key, flow) or nil)
end

-- Out of the line; the tag is remembered until the others are there.
local function leave(line, flow)
  local tag = line.count > 0 and score(line.key, flow)
  if not tag then
    return
  end
  local _, _, weight = wait_of(line, flow)
  redis.call('ZREM', line.key, flow)
  redis.call('HDEL', line.waits, flow)
  redis.call('ZADD', line.given, exact(tag), flow)
  line.count, line.weight, line.dirty = line.count - 1, math.max(0, line.weight - weight), true
end

-- The flow whose turn it is, its tag, and what it wants; nil when nobody waits.
local function first(line)
  while line.count > 0 do
    local found = redis.call('ZRANGE', line.key, 0, 0, 'WITHSCORES')
    local want, until_s = wait_of(line, found[1])
    if until_s >= now_s then
      return found[1], tonumber(found[2]), want
    end
    leave(line, found[1])
  end
end

-- A flow's tag.  One that comes, or comes back, is no earlier than what was given last: it cannot save up turns.
local function tag_of(line, flow)
  return score(line.key, flow) or math.max(score(line.given, flow) or 0, line.time + TIE)
end

-- What must be left in the bucket when the flow takes its part.
local function kept(line, flow)
  local head, least, want = first(line)
  if not head or head == flow then
    return 0
  end
  local tag = tag_of(line, flow)
  return tag < least and 0 or want + (tag - least) * line.weight
end

-- What flows to others meanwhile, when a flow takes `units` in its turns.
local function passing(line, flow, units, weight)
  if line.count == 0 or units == 0 then
    return 0
  end
  local weights = line.weight + (score(line.key, flow) and 0 or weight)
  return units * math.max(0, weights / weight - 1)
end

-- Wait in the line, or go on waiting, for `want` units which flow in within `wait_s`.
local function queue(line, flow, want, wait_s, weight)
  if not line.is_open then
    redis.call('DEL', line.key, line.waits, line.given)
    line.is_open = true
  end
  local before = 0
  if score(line.key, flow) then
    local wanted, _, weighed = wait_of(line, flow)
    want, before = math.max(want, wanted), weighed
  else
    redis.call('ZADD', line.key, exact(tag_of(line, flow)), flow)
    redis.call('ZREM', line.given, flow)
    line.count = line.count + 1
  end
  redis.call('HSET', line.waits, flow, struct.pack('<ddd', want, now_s + wait_s + TURN_KEPT_S, weight))
  line.weight, line.dirty = math.max(weight, line.weight + weight - before), true
end

-- It was given something.  With more that waits it stays in the line, as long as that asks again.
local function take(line, flow, units, weight, waits_on)
  if not line.is_open then
    return
  end
  local _, least = first(line)
  local tag, is_in = tag_of(line, flow), score(line.key, flow)
  line.time, line.dirty = math.max(line.time, math.min(tag, least or tag)), true
  tag = tag + units / weight
  if is_in and waits_on then
    local _, until_s, weighed = wait_of(line, flow)
    redis.call('ZADD', line.key, exact(tag), flow)
    redis.call('HSET', line.waits, flow, struct.pack('<ddd', 0, math.min(until_s, now_s + TURN_KEPT_S), weighed))
  else
    leave(line, flow)
    redis.call('ZADD', line.given, exact(tag), flow)
  end
end

local function write_lines()
  for _, line in pairs(lines) do
    if line.dirty then
      local waits_on = first(line)
      redis.call('ZREMRANGEBYSCORE', line.given, '-inf', exact(line.time))
      redis.call('HSET', line.waits, '', struct.pack('<dd', line.weight, line.time))
      for _, key in ipairs({line.key, line.waits, line.given}) do
        redis.call('EXPIRE', key, waits_on and LINE_KEPT_S or 0)
      end
    end
  end
end
