// The two ways to lay calls along the timeline: by their order on each rank, or by time.

// Each call is a box of the same width: the calls of an SPMD program stand under each other.
class OrderAxis {
  constructor(run, callsOf) {
    this.most = 1;
    for (let rank = 0; rank < run.worldSize; rank++) this.most = Math.max(this.most, callsOf(rank).length);
    this.least = 3;
    this.scale = 92;
    this.start = 92;
  }

  fit(width) {
    this.start = Math.max(this.least, Math.min(92, width / this.most));
    this.scale = this.start;
  }

  get width() {
    return this.most * this.scale;
  }

  span(call, place) {
    return [place * this.scale, (place + 1) * this.scale - (this.scale > 6 ? 2 : 0)];
  }

  first(calls, x) {
    return Math.max(0, Math.floor(x / this.scale));
  }

  ticks(from, to) {
    const every = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000].find((step) => step * this.scale >= 34) || 10000;
    const found = [];
    for (let at = Math.ceil(from / this.scale / every) * every; at * this.scale <= to && at < this.most; at += every) found.push([(at + 0.5) * this.scale - 1, `${at + 1}`]);
    return found;
  }
}

class TimeAxis {
  constructor(run, callsOf) {
    let [begin, end] = [Infinity, 0];
    for (let rank = 0; rank < run.worldSize; rank++) {
      const calls = callsOf(rank);
      if (!calls.length) continue;
      begin = Math.min(begin, calls[0].started);
      for (const call of calls) end = Math.max(end, call.finished);
    }
    this.begin = Number.isFinite(begin) ? begin : 0;
    this.length = Math.max(end - this.begin, 1e-6);
  }

  fit(width) {
    this.least = (width - 4) / this.length;
    this.scale = this.least;
    this.start = this.scale;
  }

  get width() {
    return this.length * this.scale;
  }

  span(call) {
    const x = (call.started - this.begin) * this.scale;
    return [x, Math.max(x + 1.5, (call.finished - this.begin) * this.scale)];
  }

  // Calls start in order; an earlier one may last longer, so the search is by the latest end so far.
  first(calls, x) {
    calls.ends ||= latestEnds(calls);
    const time = x / this.scale + this.begin;
    let [low, high] = [0, calls.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (calls.ends[middle] < time) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  ticks(from, to) {
    const least = 90 / this.scale;
    const power = 10 ** Math.floor(Math.log10(least));
    const every = [1, 2, 5, 10].map((step) => step * power).find((step) => step >= least);
    const found = [];
    for (let at = Math.ceil((from / this.scale + this.begin) / every); (at * every - this.begin) * this.scale <= to; at++) found.push([(at * every - this.begin) * this.scale, at === 0 ? "0" : seconds(at * every)]);
    return found;
  }
}

function latestEnds(calls) {
  let latest = 0;
  return Float64Array.from(calls, (call) => (latest = Math.max(latest, call.finished)));
}
