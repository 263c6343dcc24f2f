-- The demo's pipeline: two topics, and views that follow them. {service_url}, {flights} and {airports} are filled in.
CREATE SOURCE flights (
  index BIGINT, carrier VARCHAR, origin VARCHAR, dest VARCHAR, time_hour TIMESTAMPTZ,
  dep_delay INT, arr_delay INT, air_time INT, distance INT
) WITH (
  connector = 'pulsar', service.url = '{service_url}', topic = '{flights}',
  startingOffsets = 'earliest', maxMessagesPerTrigger = '{batch}'
) FORMAT PLAIN ENCODE JSON;

CREATE TABLE airports (faa VARCHAR PRIMARY KEY, name VARCHAR, lat DOUBLE PRECISION, lon DOUBLE PRECISION) WITH (
  connector = 'pulsar', service.url = '{service_url}', topic = '{airports}', startingOffsets = 'earliest'
) FORMAT UPSERT ENCODE JSON;

-- Delays per carrier and hour window.
CREATE MATERIALIZED VIEW delays AS
SELECT carrier, window_start, count(*) AS flights, count(dep_delay) AS departed, sum(dep_delay) AS delay_minutes,
       avg(dep_delay) AS mean_delay, max(dep_delay) AS worst_delay
FROM TUMBLE(flights, time_hour, INTERVAL '1 hour')
GROUP BY carrier, window_start;

CREATE MATERIALIZED VIEW route_totals AS
SELECT origin, dest, count(*) AS flights, count(air_time) AS flown, sum(distance) AS miles, sum(air_time) AS minutes
FROM flights
GROUP BY origin, dest;

-- A view over a view, joined with the airports' names; four destinations are in no list of airports.
CREATE MATERIALIZED VIEW routes AS
SELECT r.origin, r.dest, a.name AS airport, r.flights, r.flown, r.miles, r.minutes
FROM route_totals r LEFT JOIN airports a ON r.dest = a.faa;
