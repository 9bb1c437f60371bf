-- What the ledger's scripts share; each follows behind this text.  All keys lie in one hash slot.
-- KEYS[1] the mark that the ledger is whole, KEYS[2..] the memory of each id
-- ARGV[1] MessagePack {window_s, half_life_s, limits: [[bucket, refill, cap, warm_s, paced]], ...}; what follows is the script's
-- ARGV[2] the mark that the caller knows, if it counts on what the ledger remembers
-- Each returns MessagePack {now_s, [bucket, level, ...] as changed, ...}, or "lost" (and changes nothing) without the mark
-- or with another.
-- A key of another type ends a call with an error: each script reads buckets, shares and memories before it writes.
local mark = redis.call('GET', KEYS[1])
if not mark or (ARGV[2] or '') ~= '' and ARGV[2] ~= mark then
  return 'lost'
end
local TAG = string.sub(KEYS[1], 1, -1 - #'ledger')
local MEMORY, EXPIRIES = TAG .. 'request:', TAG .. 'expiries'
local STEPPED_S = 5
local LAPSED_WINDOWS = 6         -- a settlement that comes later than this takes a lapsed reservation for a lost one
local NOTHING = -30              -- log2 of what counts as nothing attained
local ATTAINED_KEPT = 10000      -- idle tenants of a pool
local OPEN, WAITING, WEIGHT, TENANTS = 1, 3, 5, 6

local window_s, half_life_s, limits = request[1], request[2], request[3]
local log_now = now_s / half_life_s
local fields, buckets, pools, leases, ended, changed = {}, {}, {}, {}, {}, {}

local function stored(name)
  local s = fields[name]
  if not s then
    s = redis.call('HMGET', TAG .. 'bucket:' .. name, 'level', 'as_of', 'born', 'refill', 'cap', 'warm', 'paced')
    fields[name] = s
  end
  return s
end

-- A bucket as of now.  New limits hold from the first call that brings them: a level above the new cap is cut, debt stays.
-- Without limits and unknown it is nil.
local function bucket(name, limit)
  local b = buckets[name]
  if b then
    return b
  end
  local s = stored(name)
  if s[1] then
    b = {level = tonumber(s[1]), as_of = tonumber(s[2]), born = tonumber(s[3] or 0), refill = tonumber(s[4]),
         cap = tonumber(s[5]), warm = tonumber(s[6] or 0), paced = s[7] == '1'}
    if now_s > b.as_of then
      b.level = b.level + earned(b)
      b.as_of = now_s
    elseif b.as_of - now_s > STEPPED_S then  -- another clock: a step back that is smaller earns nothing twice
      b.as_of, b.born = now_s, math.min(b.born, now_s)
    end
    if limit and (b.refill ~= limit[2] or b.cap ~= limit[3] or b.warm ~= limit[4] or b.paced ~= limit[5]) then
      b.level = math.min(top(b), b.level)
      b.refill, b.cap, b.warm, b.paced, b.dirty = limit[2], limit[3], limit[4], limit[5], true
    end
    b.level = math.min(top(b), b.level)
  elseif limit then
    b = {level = 0, as_of = now_s, born = now_s, refill = limit[2], cap = limit[3], warm = limit[4], paced = limit[5],
         dirty = true, is_new = true}
  end
  buckets[name] = b
  return b
end

-- Give units back (or charge them, below zero).  A bucket that nobody knew is owed nothing.
local function give(b, units)
  if b then
    b.level = math.min(b.is_new and 0 or top(b), b.level + units)
    b.dirty = true
  end
end

local function pool_of(name)
  local p = pools[name]
  if not p then
    local attained = TAG .. 'attained:' .. name .. ':' .. exact(half_life_s)
    p = {key = TAG .. 'shares:' .. name, active = attained .. ':active', idle = attained .. ':idle', entries = {},
         tenants = {}}
    pools[name] = p
  end
  return p
end

-- {open units, open requests, waiting units, waiting requests, weight of the tenants in it (or its own), those tenants}
-- of a lane (`lane`) or of a tenant in it (`lane/tenant`).
local function entry(p, field)
  local e = p.entries[field]
  if not e then
    local stored = redis.call('HGET', p.key, field)
    e = stored and {struct.unpack('<dddddd', stored)} or {0, 0, 0, 0, 0, 0}
    p.entries[field] = e
  end
  return e
end

local function is_busy(e)
  return e[OPEN + 1] + e[WAITING + 1] > 0
end

local function log2(value)
  return math.log(value) / math.log(2)
end

-- A tenant in a pool: its open and waiting requests, and what it attained as `log2(units / weight) + time / half life`,
-- which does not change while it decays.
local function tenant_of(p, name)
  local t = p.tenants[name]
  if not t then
    local n = tonumber(redis.call('HGET', p.key, '/' .. name) or 0)
    t = {n = n, was = n, score = tonumber(redis.call('ZSCORE', n > 0 and p.active or p.idle, name) or nil)}
    p.tenants[name] = t
  end
  return t
end

local function attained(t)
  local power = t.score and t.score - log_now or NOTHING
  return power > NOTHING + 0.01 and 2 ^ power or 0
end

local function serve(t, units)
  t.score = math.max(NOTHING, log2(math.max(1e-300, attained(t) + units))) + log_now
  t.dirty = true
end

-- One that comes back from idling is lifted to the least of the active ones, so that it cannot live on what it saved.
local function activate(p, t)
  if t.n > 0 or t.was > 0 then
    return
  end
  if p.least == nil then
    p.least = tonumber(redis.call('ZRANGE', p.active, 0, 0, 'WITHSCORES')[2] or nil) or false
  end
  t.score = math.max(t.score or NOTHING + log_now, p.least or NOTHING + log_now)
  p.least = math.min(p.least or t.score, t.score)
end

local function bump(e, kind, units, sign)
  local n = math.max(0, e[kind + 1] + sign)
  e[kind + 1] = n
  e[kind] = n > 0 and math.max(0, e[kind] + sign * units) or 0
  e.dirty = true
end

-- Count a request in (sign 1) or out (-1) of what is open or waits.
local function count(pool, lane, tenant, kind, units, sign, weight)
  local p = pool_of(pool)
  local l, m, t = entry(p, lane), entry(p, lane .. '/' .. tenant), tenant_of(p, tenant)
  local was_busy = is_busy(m)
  if sign > 0 then
    activate(p, t)
  end
  bump(l, kind, units, sign)
  bump(m, kind, units, sign)
  t.n = math.max(0, t.n + sign)
  t.dirty = true
  if is_busy(m) then
    l[TENANTS] = l[TENANTS] + (was_busy and 0 or 1)
    local mine = weight or m[WEIGHT]
    l[WEIGHT] = l[WEIGHT] + mine - m[WEIGHT]
    m[WEIGHT] = mine
  elseif was_busy then
    l[TENANTS] = l[TENANTS] - 1
    l[WEIGHT] = l[TENANTS] > 0 and l[WEIGHT] - m[WEIGHT] or 0
    m[WEIGHT] = 0
  end
end

-- Ids whose lease begins or is renewed, and those whose lease ends.
local function lease(id)
  leases[#leases + 1] = exact(now_s + window_s)
  leases[#leases + 1] = id
end

local function in_parts(command, key, arguments)
  for start = 1, #arguments, 1000 do
    redis.call(command, key, unpack(arguments, start, math.min(#arguments, start + 999)))
  end
end

local function write_tenants(p, set, gone)
  local active, idle, to_idle, to_active = {}, {}, {}, {}
  for name, t in pairs(p.tenants) do
    if t.dirty then
      local list = t.n > 0 and active or idle
      if t.score then
        list[#list + 1] = exact(t.score)
        list[#list + 1] = name
      end
      if t.n > 0 then
        set[#set + 1] = '/' .. name
        set[#set + 1] = exact(t.n)
        if t.was == 0 then to_active[#to_active + 1] = name end
      elseif t.was > 0 then
        gone[#gone + 1] = '/' .. name
        to_idle[#to_idle + 1] = name
      end
    end
  end
  in_parts('ZREM', p.active, to_idle)
  in_parts('ZREM', p.idle, to_active)
  in_parts('ZADD', p.active, active)
  in_parts('ZADD', p.idle, idle)
  local kept_s = math.ceil(2 * window_s - NOTHING * half_life_s)
  if #active > 0 then
    redis.call('EXPIRE', p.active, kept_s)
  end
  if #idle > 0 then
    redis.call('ZREMRANGEBYSCORE', p.idle, '-inf', exact(log_now + NOTHING))
    redis.call('ZREMRANGEBYRANK', p.idle, 0, -ATTAINED_KEPT - 1)
    redis.call('EXPIRE', p.idle, kept_s)
  end
end

local function write_pool(p)
  local set, gone = {}, {}
  for field, e in pairs(p.entries) do
    if e.dirty and is_busy(e) then
      set[#set + 1] = field
      set[#set + 1] = struct.pack('<dddddd', unpack(e, 1, 6))
    elseif e.dirty then
      gone[#gone + 1] = field
    end
  end
  write_tenants(p, set, gone)
  in_parts('HSET', p.key, set)
  in_parts('HDEL', p.key, gone)
end

-- Write what changed; the levels that did.
local function write()
  local levels = {}
  for name, b in pairs(buckets) do
    if b.dirty then
      store(TAG .. 'bucket:' .. name, b)
      levels[#levels + 1] = name
      levels[#levels + 1] = b.level
    end
  end
  for _, p in pairs(pools) do
    write_pool(p)
  end
  in_parts('ZREM', EXPIRIES, ended)
  in_parts('ZADD', EXPIRIES, leases)
  return levels
end

local function buckets_of(seen)
  return {'global:all', 'pool:' .. seen.pool, 'tenant:' .. seen.tenant, 'class:' .. seen.class}
end

-- Take an id out of what is open, with all that it holds, or out of what waits.
local function release(seen, state, units)
  count(seen.pool, seen.lane, seen.tenant, state == 'reserved' and OPEN or WAITING, tonumber(seen.units), -1)
  for _, name in ipairs(buckets_of(seen)) do
    if units ~= 0 then
      give(bucket(name), units)
    end
  end
end

-- The memory of an id: origin, state, at, reply, why, and what it holds or waits for.  Few fields: each is searched for.
local function remembered(key)
  local s = redis.call('HMGET', key, 'origin', 'state', 'at', 'reply', 'why', 'units', 'held')
  local held = s[7] and cmsgpack.unpack(s[7]) or {}
  return {origin = s[1], state = s[2], at = s[3], reply = s[4], why = s[5], units = s[6], pool = held[1], lane = held[2],
          tenant = held[3], class = held[4], since = held[5]}
end

-- All buckets of the limits, before the first write.
local function read_limits()
  for _, limit in ipairs(limits) do
    stored(limit[1])
  end
end

-- An id and what its release changes, before the first write.
local function read_id(key)
  local seen = remembered(key)
  if seen.state == 'reserved' or seen.state == 'seen' then
    entry(pool_of(seen.pool), seen.lane)
  end
  if seen.state == 'reserved' then
    for _, name in ipairs(buckets_of(seen)) do
      stored(name)
    end
  end
  return seen
end

local function read_ids()
  local read = {}
  for n = 2, #KEYS do
    read[n] = read_id(KEYS[n])
  end
  return read
end

-- An id as it is now, of which this call may have changed what was `read`; from here on it does.
local function latest(key, read)
  if changed[key] then
    return remembered(key)
  end
  changed[key] = true
  return read
end

local function id_of(key)
  return string.sub(key, #MEMORY + 1)
end
