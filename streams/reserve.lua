-- Reserve the cost of a micro-batch: for each ask all its levels or none, and only if `admission.decide` would admit it.
-- ARGV[1] also {..., pools: [[pool, units_per_s, units, window_units, lanes, weights]] (false is unknown),
--         asks: [[origin, reply, units, pool index, lane, tenant, class, [limit index], lane_wait_limit_s, is_back,
--         budget_wait_limit_s]],
--         an ask of two fields remembers an id as answered without any budget, one of one field only asks about it;
--         then for how long after its end an id's answer may be on its way}
-- Returns also, per ask, one of
--         {true or false (reserved or refused), share, attained, level or 0, wait_s, [cap]}: what `admission.Facts` holds,
--         {'closed'}, {'new'},
--         {'reserved' | 'finished' | 'settled', at_s, why, ended_s} for an id seen before from the same origin: `ended_s`
--         ago it was finished,
--         {'repeat', at_s, reply, ended} for one seen before from another: `reply` is where the first asker is answered,
--         `ended` whether that can have happened.
-- A refused ask changes no level.  Each sees what the earlier ones of the batch took.
local REAPED = 20
local TENANT = 3         -- its place among the levels
local HEAVIEST = 1e9     -- a larger weight would swallow the others' digits
local refused = {}       -- cost of each flow that was asked again in this call and goes on waiting: it keeps its order

-- What lapsed, a bounded portion at a time.
local function read_lapsed(most)
  local lapsed = {}
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', EXPIRIES, '-inf', exact(now_s), 'LIMIT', 0, most)) do
    lapsed[id] = read_id(MEMORY .. id)
  end
  return lapsed
end

-- Give it back.
local function reap(lapsed)
  for id, seen in pairs(lapsed) do
    local key = MEMORY .. id
    changed[key] = true
    if seen.state == 'reserved' then
      release(seen, 'reserved', tonumber(seen.units))
      redis.call('HSET', key, 'state', 'lapsed')
      redis.call('EXPIRE', key, math.ceil(LAPSED_WINDOWS * window_s))
    elseif seen.state == 'seen' then
      release(seen, 'seen', 0)
      redis.call('HSET', key, 'state', 'charged')  -- as free as a new one, but for attempts that were charged
      redis.call('EXPIRE', key, math.ceil(window_s))
    end
    ended[#ended + 1] = id
  end
end

local function share_of(room, p, lane, tenant, weight)
  local l, m = entry(p, lane), entry(p, lane .. '/' .. tenant)
  local pool_open, busy, mine, others = 0, {}, nil, 0
  local names, weights = room[5], room[6]
  for i = 1, #names do
    local e = entry(p, names[i])
    pool_open = pool_open + e[OPEN]
    if names[i] == lane then
      mine = weights[i]
    elseif is_busy(e) then
      others = others + weights[i]
      busy[#busy + 1] = {e[OPEN] + e[WAITING], weights[i]}
    end
  end
  if not mine then
    error('no lane ' .. lane)
  end
  for i = 1, #busy do
    busy[i][2] = busy[i][2] / mine
  end
  local other_tenants = math.max(0, l[WEIGHT] - m[WEIGHT])
  return {pool_open, l[OPEN], l[OPEN + 1], mine / (others + mine), m[OPEN], m[WAITING], weight / (other_tenants + weight),
          l[WAITING], busy}
end

-- sharing.on_lane_s, and whether it is within the limit
local function in_time(share, room, limit_s)
  local units_per_s, units = room[2], room[3]
  if not units_per_s or not units or units_per_s <= 0 then
    return 0 <= limit_s
  end
  local outside = share[1] > 0 and math.max(0, 1 - units / share[1]) or 0
  local lane = share[2] * outside
  local others = 0
  for _, other in ipairs(share[9]) do
    others = others + math.min(other[1], lane * other[2])
  end
  return (lane + others) / units_per_s <= limit_s
end

-- sharing.must_wait
local function must_wait(units, share, room, is_back)
  local window = room[4]
  if not window or share[1] + units <= window or share[5] <= 0 then
    return false
  end
  if share[6] > 0 and not is_back then
    return true
  end
  return share[5] + units > window * share[4] * share[7]
end

-- The first level that can never hold the units (and its cap), else the one that lacks them for longest (and how long),
-- else 0; and the shared levels that lack them or keep a turn for the flow, each with its wait if its turn is now.
-- `before`: cost of the flow that comes before it.
local function lacking(units, levels, flow, part, is_back, before)
  local worst, worst_s, short = 0, 0, {}
  for n = 1, #levels do
    local limit = limits[levels[n]]
    if units > limit[3] then
      return n, 0, limit[3], {}
    end
    local b, others, meanwhile = bucket(limit[1], limit), 0, 0
    local missing = (b.paced and 0 or units) - b.level
    if n ~= TENANT then
      local line = line_of(limit[1])
      others, meanwhile = kept(line, flow), passing(line, flow, before, part)
      others = b.paced and math.min(others, top(b)) or others
      if missing + others > 0 or (is_back and line.count > 0 and score(line.key, flow)) then
        short[limit[1]] = missing > 0 and flow_s(b, missing) or 0
      end
    end
    missing = missing + others + before
    if missing > 0 then
      local wait_s = flow_s(b, missing + meanwhile)
      if wait_s > worst_s then
        worst, worst_s = n, wait_s
      end
    end
  end
  return worst, worst_s, nil, short
end

-- A refused flow waits in the lines of the budgets that it lacks; one that is kept waiting by something else does not.
-- Of that one that is new says nothing: it may wait for those of its own before it.
local function line_up(levels, flow, units, is_back, short, weight)
  for n = 1, #levels do
    local name = limits[levels[n]][1]
    if n ~= TENANT and short[name] then
      queue(line_of(name), flow, units, short[name], weight)
    elseif n ~= TENANT and is_back then
      leave(line_of(name), flow)
    end
  end
end

local function remember(key, seen, ask, state)
  redis.call('HSET', key, 'origin', ask[1], 'reply', ask[2], 'state', state, 'at', seen.at or now_s, 'units', ask[3],
    'held', cmsgpack.pack({request[4][ask[4]][1], ask[5], ask[6], ask[7], now_s}))
  if seen.state and seen.state ~= 'seen' then
    redis.call('PERSIST', key)
  end
end

local function is_same(seen, ask)
  return tonumber(seen.units) == ask[3] and seen.lane == ask[5] and seen.tenant == ask[6] and seen.class == ask[7]
    and seen.pool == request[4][ask[4]][1]
end

local function decide(key, seen, ask)
  local units, room, lane, tenant = ask[3], request[4][ask[4]], ask[5], ask[6]
  local p, weight = pool_of(room[1]), math.min(HEAVIEST, limits[ask[8][TENANT]][2])
  local t = tenant_of(p, tenant)
  activate(p, t)
  local share = share_of(room, p, lane, tenant, weight)
  local flow, part = room[1] .. '/' .. lane .. '/' .. tenant, share[4] * share[7]
  local before = ask[10] and (refused[flow] or 0) or share[6]
  local level, wait_s, cap, short = lacking(units, ask[8], flow, part, ask[10], before)
  local answer = {false, share, attained(t), level, wait_s, cap}
  lease(id_of(key))
  if level > 0 or not in_time(share, room, ask[9]) or must_wait(units, share, room, ask[10]) then
    local is_paid_later = level > 0 and not cap and wait_s <= ask[11]
    local is_turn = is_paid_later and level ~= TENANT
    line_up(ask[8], flow, units, ask[10], is_turn and short or {}, part)
    if ask[10] and is_paid_later then
      refused[flow] = (refused[flow] or 0) + units
    end
    count(room[1], lane, tenant, WAITING, units, 1, weight)
    if seen.state ~= 'seen' or not is_same(seen, ask) then
      remember(key, seen, ask, 'seen')
    end
    return answer
  end
  local waits_on = entry(p, lane .. '/' .. tenant)[WAITING + 1] > 0
  for n, i in ipairs(ask[8]) do
    local b = bucket(limits[i][1])
    b.level = b.level - units
    b.dirty = true
    if n ~= TENANT then
      take(line_of(limits[i][1]), flow, units, part, waits_on)
    end
  end
  count(room[1], lane, tenant, OPEN, units, 1, weight)
  serve(t, units / weight)
  remember(key, seen, ask, 'reserved')
  answer[1] = true
  return answer
end

local function close(key, seen, ask)
  if seen.state == 'seen' then
    ended[#ended + 1] = id_of(key)
  end
  redis.call('HSET', key, 'origin', ask[1], 'reply', ask[2], 'state', 'finished', 'at', seen.at or now_s, 'ended', now_s)
  redis.call('EXPIRE', key, math.ceil(window_s))
  return {'closed'}
end

local function answer_to(key, seen, ask)
  local state = seen.state
  if state == 'lapsed' then
    state = seen.origin == ask[1] and 'reserved' or nil
  elseif state == 'charged' then
    state = nil
  end
  if state and seen.origin and seen.origin ~= ask[1] then
    return {'repeat', tonumber(seen.at), seen.reply, state == 'finished' or state == 'settled'}
  elseif state == 'reserved' or state == 'finished' or state == 'settled' then
    local ended_at = state == 'finished' and tonumber(redis.call('HGET', key, 'ended') or nil)
    local ended_s = ended_at and now_s - ended_at
    if ended_s and ended_s >= request[6] then
      redis.call('HSET', key, 'ended', now_s)  -- now it is this run that may answer: no other does before it must be there
    end
    return {state, tonumber(seen.at), seen.why, ended_s}
  elseif not ask[2] then
    return {'new'}
  elseif state == 'seen' then
    release(seen, 'seen', 0)
  end
  return (ask[3] and decide or close)(key, seen, ask)
end

read_limits()
for _, limit in ipairs(limits) do
  if string.sub(limit[1], 1, #'tenant:') ~= 'tenant:' then
    line_of(limit[1])
  end
end
for _, room in ipairs(request[4]) do
  entry(pool_of(room[1]), room[5][1])
end
local lapsed, read, answers = read_lapsed(REAPED + #request[5]), read_ids(), {}
reap(lapsed)
for a, ask in ipairs(request[5]) do
  local key = KEYS[a + 1]
  answers[a] = answer_to(key, latest(key, read[a + 1]), ask)
end
write_lines()
return cmsgpack.pack({now_s, write(), answers})
