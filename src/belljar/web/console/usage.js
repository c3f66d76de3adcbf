// What a run used of what it was granted, as bars.

import { h, svg } from "./elements.js";
import { duration } from "./words.js";

const WIDTH = 320;
const ROW = 34;

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
      const share = most > 0 ? Math.min(1, Math.max(0, used / most)) : 0;
      const y = index * ROW;
      return [
        svg("text", { x: 0, y: y + 12 }, name),
        svg("text", { x: WIDTH, y: y + 12, "text-anchor": "end", class: "faint" }, text),
        svg("rect", { x: 0, y: y + 18, width: WIDTH, height: 7, rx: 3.5, class: "track" }),
        svg("rect", { x: 0, y: y + 18, width: share * WIDTH, height: 7, rx: 3.5, class: share > 0.9 ? "bar full" : "bar" }),
      ];
    }));
}
