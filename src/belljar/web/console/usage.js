// What a run uses of what it was granted: as lines while it goes on, as bars when it is over.

import { faint, h, put, svg } from "./elements.js";
import { duration } from "./words.js";

const WIDTH = 320;
const HEIGHT = 80;
const ROW = 34;
const MOST_SAMPLES = 600;
const NEARLY_ALL = 0.9;

export class UsageOverTime {
  #samples = [];
  element = h("div", {});

  // One of the answer of `/sandbox/usage`.
  add(sample) {
    this.#samples = [...this.#samples, sample].slice(-MOST_SAMPLES);
    const processor = `processor ${sample.cpu_usage_percent} of ${sample.cpu_cores * 100} %`;
    const memory = `memory ${sample.memory_usage_mb} of ${sample.memory_limit_mb} MB`;
    put(this.element, chart(HEIGHT + ROW, `${processor}, ${memory}`,
      svg("rect", { x: 0, y: 0, width: WIDTH, height: HEIGHT, class: "frame" }),
      this.#line("processor", (one) => one.cpu_usage_percent / 100 / one.cpu_cores),
      this.#line("memory", (one) => one.memory_usage_mb / one.memory_limit_mb),
      svg("text", { x: 0, y: HEIGHT + 14, class: "processor" }, processor),
      svg("text", { x: 0, y: HEIGHT + 30, class: "memory" }, memory)));
  }

  #line(name, share) {
    const step = WIDTH / Math.max(this.#samples.length - 1, 1);
    const points = this.#samples.map((one, index) => [index * step, HEIGHT * (1 - within(share(one)))]);
    return svg("polyline", { points: points.map((point) => point.map(Math.round)).join(" "), class: name });
  }
}

export function usageChart({ usage, policy_snapshot: granted }) {
  if (usage.wall_s === undefined) return faint("Known when the run is over.");
  const limit = (name) => granted[`limits.${name}`].value;
  const bars = [
    ["time", usage.wall_s / limit("timeout_s"), `${duration(usage.wall_s * 1000)} of ${limit("timeout_s")} s`],
    ["processor", usage.cpu_s / usage.wall_s / limit("cpu_cores"), `${duration(usage.cpu_s * 1000)} in that time`],
    ["memory", usage.memory_peak_mb / limit("memory_mb"), `${usage.memory_peak_mb} of ${limit("memory_mb")} MB at most`],
    ["processes", usage.pids_peak / limit("pids"), `${usage.pids_peak} of ${limit("pids")} at most`],
  ];
  return chart(ROW * bars.length, bars.map(([name, , text]) => `${name}: ${text}`).join("; "), bars.map(bar));
}

function bar([name, share, text], index) {
  const at = index * ROW;
  const shape = { x: 0, y: at + 18, height: 7, rx: 3.5 };
  return [
    svg("text", { x: 0, y: at + 12 }, name),
    svg("text", { x: WIDTH, y: at + 12, "text-anchor": "end", class: "faint" }, text),
    svg("rect", { ...shape, width: WIDTH, class: "track" }),
    svg("rect", { ...shape, width: within(share) * WIDTH, class: share > NEARLY_ALL ? "bar full" : "bar" }),
  ];
}

function chart(height, said, ...shapes) {
  return svg("svg", { class: "usage", viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": said }, shapes);
}

function within(share) {
  return share > 0 ? Math.min(share, 1) : 0;
}
