-- Settle finished attempts: give back what was reserved and not used, charge what was used beyond it.
-- ARGV[1] also {..., [], charges: [[attempt, units, partial, reserved_units, pool, lane, tenant, [limit index]]]}
-- Returns also, per id, {result, units given back}:
--         'settled' once per id, 'partial' once per attempt that is tried again, 'repeat' for what was charged before,
--         'unknown' when no reservation is left: the charge names what it was and who pays.
-- A level may fall below zero: the debt is paid by the refill before anyone else is admitted.

local function give_named(charge, units)
  for _, i in ipairs(charge[8]) do
    give(bucket(limits[i][1], limits[i]), units)
  end
end

-- Correct what the tenant attained, as if the units had been charged at `since_s`.
local function correct(charge, units, since_s)
  local p = pool_of(charge[5])
  local weight = limits[charge[8][3]][2]
  serve(tenant_of(p, charge[7]), units / weight * 2 ^ ((since_s - now_s) / half_life_s))
end

local function forget_later(key)
  redis.call('EXPIRE', key, math.ceil(window_s))
end

-- The reservation stays, for the attempt that follows.
local function charge_part(key, seen, charge)
  if redis.call('HSETNX', key, 'attempt:' .. charge[1], charge[2]) == 0 then
    return {'repeat', 0}
  end
  if not seen.state then
    redis.call('HSET', key, 'state', 'charged')
    forget_later(key)
  end
  give_named(charge, -charge[2])
  correct(charge, charge[2], now_s)
  local is_known = seen.state and seen.state ~= 'charged' and seen.state ~= 'seen'
  return {is_known and 'partial' or 'unknown', -charge[2]}
end

local function charge_all(key, seen, charge)
  local state, units = seen.state, charge[2]
  if state == 'settled' then
    return {'repeat', 0}
  end
  redis.call('HSET', key, 'state', 'settled', 'at', seen.at or now_s)
  forget_later(key)
  if state == 'reserved' then
    local back = tonumber(seen.units) - units
    release(seen, state, back)
    correct(charge, -back, seen.since)
    ended[#ended + 1] = id_of(key)
    return {'settled', back}
  elseif state == 'finished' or state == 'lapsed' then  -- what it held was given back
    give_named(charge, -units)
    correct(charge, units, now_s)
    return {'settled', -units}
  elseif state == 'seen' then
    release(seen, state, 0)
    ended[#ended + 1] = id_of(key)
  end
  local back = charge[4] - units
  give_named(charge, back)
  correct(charge, units, now_s)
  return {'unknown', back}
end

read_limits()
local read, answers = read_ids(), {}
for n, charge in ipairs(request[5]) do
  local key = KEYS[n + 1]
  answers[n] = (charge[3] and charge_part or charge_all)(key, latest(key, read[n + 1]), charge)
end
return cmsgpack.pack({now_s, write(), answers})
