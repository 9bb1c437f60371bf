-- A token bucket {level, as_of, born, refill, cap, warm, paced}; this text stands before those of the scripts.
-- ARGV[1] MessagePack, as the script behind says; time is the server's.
local BUCKET_KEPT_S = 86400      -- a bucket is forgotten when it has been full for as long
local LONGEST_S = 3e9
local PACED_S = 0.25

local request = cmsgpack.unpack(ARGV[1])
local time = redis.call('TIME')
local now_s = tonumber(time[1]) + tonumber(time[2]) / 1e6

local function exact(number)
  return string.format('%.17g', number)
end

-- Largest level: a paced bucket saves no more than what flows in between two looks at what waits for it.
local function top(b)
  return b.paced and math.min(b.cap, b.refill * PACED_S) or b.cap
end

-- What flowed in since as_of: the rate rises evenly from 0 to the full one between born and born + warm.
local function earned(b)
  local from_s, to_s = math.max(0, b.as_of - b.born), now_s - b.born
  if from_s >= b.warm then
    return b.refill * (now_s - b.as_of)
  end
  local ramp_s = math.min(to_s, b.warm)
  return b.refill * ((ramp_s * ramp_s - from_s * from_s) / (2 * b.warm) + math.max(0, to_s - b.warm))
end

-- Until `units` have flowed in.  Never below the clock's resolution, since it is above zero if and only if units lack.
local function flow_s(b, units)
  local age_s = math.max(0, b.as_of - b.born)
  local wait_s
  if age_s >= b.warm then
    wait_s = units / b.refill
  else
    local due = units + b.refill * age_s * age_s / (2 * b.warm)
    local ramp = b.refill * b.warm / 2
    if due <= ramp then
      wait_s = math.sqrt(2 * b.warm * due / b.refill) - age_s
    else
      wait_s = b.warm + (due - ramp) / b.refill - age_s
    end
  end
  return math.max(1e-6, wait_s + b.as_of - now_s)
end

local function store(key, b)
  redis.call('HSET', key, 'level', b.level, 'as_of', b.as_of, 'born', b.born, 'refill', b.refill, 'cap', b.cap,
    'warm', b.warm, 'paced', b.paced and '1' or '0')
  local full_s = math.max(0, top(b) - b.level) / b.refill + b.warm
  redis.call('EXPIRE', key, exact(math.ceil(math.min(LONGEST_S, BUCKET_KEPT_S + full_s))))
end
