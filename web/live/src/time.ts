/** One moment on both clocks, in milliseconds; only differences are looked at. */
export interface Instant {
  /** Never goes back, and may stand still while the machine sleeps. */
  mono: number;
  /** The time of day: may be stepped either way, and runs on during sleep. */
  wall: number;
}

/**
 * How much further than the monotonic clock the wall clock must have gone
 * before it counts as sleep. Half of it takes small corrections after boot for
 * sleep, twice misses naps that outlast the window of the typing rule.
 */
export const SLEEP_GAP = 2e3;

/**
 * How late a tick may be before it is taken for suspension or throttling.
 * Browsers align the timers of hidden pages to 1 s: half of it calls each of
 * those late, twice lets a stop of 3 s pass for time to answer.
 */
export const LATE_TICK = 2e3;

/** Finds sleep and forward steps of the wall clock in a series of moments. */
export const createWatch = () => {
  let last: Instant | undefined;
  return (now: Instant): boolean => {
    const slept = !!last && now.wall - last.wall - (now.mono - last.mono) > SLEEP_GAP;
    last = now;
    return slept;
  };
};
