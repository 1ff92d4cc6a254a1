// The embedded data. A run's own part is read when it is first shown.

const embedded = (id) => JSON.parse(byId(id).textContent);
const HEADS = embedded("heads");
const MESHES = new Map();
const FIELDS = 5;
const STATES = ["open", "completed", "failed"];

function unpack(ranks) {
  if (Array.isArray(ranks)) return ranks;
  return Array.from({ length: ranks.count }, (_, place) => ranks.first + place * ranks.step);
}

function meshOf(number) {
  if (!MESHES.has(number)) {
    const mesh = embedded(`mesh-${number}`);
    for (const axis of mesh.axes) {
      axis.name = axis.names.join(" = ");
      axis.members = [];
      axis.groups.forEach((group, rank) => (axis.members[group] ||= []).push(rank));
    }
    MESHES.set(number, mesh);
  }
  return MESHES.get(number);
}

class RunData {
  constructor(number) {
    this.number = number;
    this.head = HEADS[number];
    this.mesh = meshOf(this.head.plan);
    Object.assign(this, embedded(`body-${number}`));
    this.groups = this.groups.map(unpack);
    this.verdict.ranks = unpack(this.verdict.ranks);
    this.verdict.waiting = unpack(this.verdict.waiting);
    this.odd = new Set(this.verdict.ranks);
    this.late = new Set(this.verdict.waiting);
    this.worldSize = this.head.world_size;
    this.ops = [...new Set(this.kinds.filter((kind) => !kind.internal).map((kind) => kind.op)),
      ...new Set(this.kinds.filter((kind) => kind.internal).map((kind) => kind.op))];
    this.ops = [...new Set(this.ops)];
  }

  get hasInternal() {
    return this.kinds.some((kind) => kind.internal);
  }

  // The calls of a rank: those of the scenario, or with meshsim's own. Kept, as the timeline asks often.
  callsOf(rank, withInternal) {
    this.kept ||= [[], []];
    const kept = this.kept[withInternal ? 1 : 0];
    if (!kept[rank]) {
      const flat = this.calls[rank] || [];
      const found = [];
      for (let at = 0; at < flat.length; at += FIELDS) {
        if (withInternal || !this.kinds[flat[at]].internal) found.push(new Call(this, rank, at));
      }
      kept[rank] = found;
    }
    return kept[rank];
  }

  role(rank) {
    return this.odd.has(rank) ? "at fault" : this.late.has(rank) ? "waiting" : "";
  }

  place(rank) {
    return this.mesh.dense.map(([axis], index) => `${axis} ${this.mesh.places[rank][index]}`).join(", ");
  }
}

class Call {
  constructor(run, rank, at) {
    const flat = run.calls[rank];
    this.run = run;
    this.rank = rank;
    this.kind = run.kinds[flat[at]];
    this.number = flat[at + 1];
    this.started = flat[at + 2] / 1e6;
    this.state = STATES[flat[at + 4]];
    this.finished = flat[at + 3] < 0 ? run.head.duration : flat[at + 3] / 1e6;
    this.ended = flat[at + 3] >= 0;
  }

  get group() {
    return this.run.groups[this.kind.group];
  }

  get site() {
    return this.kind.site === undefined ? null : this.run.sites[this.kind.site];
  }

  get tensor() {
    const { dtype, shapes, names } = this.kind;
    return [names, dtype, shapes].filter(Boolean).join(" ");
  }

  get with() {
    const { root, peer, tag, reduce_op: op, splits } = this.kind;
    const to = ["send", "isend"].includes(this.kind.op) ? "to" : "from";
    return [op, root !== undefined && `root ${root}`, peer !== undefined && `${to} ${peer}`, tag && `tag ${tag}`, splits]
      .filter(Boolean).join(", ");
  }

  get where() {
    return this.site ? `${fileName(this.site[0])}:${this.site[1]}` : this.kind.internal ? "meshsim" : "an unknown line";
  }

  get on() {
    return `${this.kind.axis || "group"} (${rankText(this.group, 4)})`;
  }

  text() {
    const { op } = this.kind;
    const how = this.state === "completed" ? `${seconds(this.finished - this.started)}`
      : this.state === "open" ? "never completed" : "did not complete";
    return [`rank ${this.rank}`, `${op} number ${this.number} on ${this.on}`, this.with, this.tensor, how,
      `started at ${seconds(this.started)}`, this.where].filter(Boolean).join(" · ");
  }
}
