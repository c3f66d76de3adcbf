// What a run uses of what it was granted: as lines while it goes on, as bars when it is over.

import { h, put, svg } from "./elements.js";
import { duration } from "./words.js";

const WIDTH = 320;
const HEIGHT = 80;
const ROW = 34;
const MOST_SAMPLES = 600;

export class UsageOverTime {
  #samples = [];
  element = h("div", {});

  // One of the answer of `/sandbox/usage`.
  add(sample) {
    this.#samples = [...this.#samples, sample].slice(-MOST_SAMPLES);
    const said = `processor ${sample.cpu_percent} % of ${sample.cpu_cores} cores, memory ${sample.memory_mb} of ${sample.memory_limit_mb} MB, ${sample.pids} processes`;
    put(this.element, svg("svg", { class: "usage", viewBox: `0 0 ${WIDTH} ${HEIGHT + 34}`, role: "img", "aria-label": said },
      svg("rect", { x: 0, y: 0, width: WIDTH, height: HEIGHT, class: "frame" }),
      this.#line("processor", (one) => one.cpu_percent / 100 / one.cpu_cores),
      this.#line("memory", (one) => one.memory_mb / one.memory_limit_mb),
      svg("text", { x: 0, y: HEIGHT + 14, class: "processor" }, `processor ${sample.cpu_percent} % of ${sample.cpu_cores * 100} %`),
      svg("text", { x: 0, y: HEIGHT + 30, class: "memory" }, `memory ${sample.memory_mb} of ${sample.memory_limit_mb} MB`)));
  }

  #line(name, share) {
    const step = WIDTH / Math.max(this.#samples.length - 1, 1);
    const points = this.#samples.map((one, index) => `${(index * step).toFixed(1)},${(HEIGHT * (1 - within(share(one)))).toFixed(1)}`);
    return svg("polyline", { points: points.join(" "), class: name });
  }
}

export function usageChart(run) {
  const { usage, policy_snapshot: granted } = run;
  if (usage?.wall_s === undefined) return h("p", { class: "faint" }, "Known when the run is over.");
  const limit = (name) => granted[`limits.${name}`]?.value;
  const bars = [
    ["time", usage.wall_s, limit("timeout_s"), `${duration(usage.wall_s * 1000)} of ${limit("timeout_s")} s`],
    ["processor", usage.cpu_s, usage.wall_s * limit("cpu_cores"), `${duration(usage.cpu_s * 1000)}, ${limit("cpu_cores")} cores`],
    ["memory", usage.memory_peak_mb, limit("memory_mb"), `${usage.memory_peak_mb} of ${limit("memory_mb")} MB at most`],
    ["processes", usage.pids_peak, limit("pids"), `${usage.pids_peak} of ${limit("pids")} at most`],
  ];
  const said = bars.map(([name, , , text]) => `${name}: ${text}`).join("; ");
  return svg("svg", { class: "usage", viewBox: `0 0 ${WIDTH} ${ROW * bars.length}`, role: "img", "aria-label": said },
    bars.map(([name, used, most, text], index) => {
      const share = within(used / most);
      const y = index * ROW;
      return [
        svg("text", { x: 0, y: y + 12 }, name),
        svg("text", { x: WIDTH, y: y + 12, "text-anchor": "end", class: "faint" }, text),
        svg("rect", { x: 0, y: y + 18, width: WIDTH, height: 7, rx: 3.5, class: "track" }),
        svg("rect", { x: 0, y: y + 18, width: share * WIDTH, height: 7, rx: 3.5, class: share > 0.9 ? "bar full" : "bar" }),
      ];
    }));
}

function within(share) {
  return share > 0 ? Math.min(share, 1) : 0;
}
