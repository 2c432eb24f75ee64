// Names of things in a figure: where they fit, and how they are shortened. Pure functions of sizes in pixels.

const PAD = 2;
const DIRECTIONS = 16;
/** Distances between a point and its label, in heights of the label; from the third on, with a line. */
const DISTANCES = [0.4, 0.8, 1.8, 2.8, 4, 5.5, 7.5];

const overlap = (a, b) => a.x < b.x + b.w && b.x < a.x + a.w && a.y < b.y + b.h && b.y < a.y + a.h;

/** Return whether a line from p to q enters a box (Liang and Barsky). */
function crosses(box, p, q) {
  let [low, high] = [0, 1];
  for (const [from, step, least, most] of [[p.x, q.x - p.x, box.x, box.x + box.w], [p.y, q.y - p.y, box.y, box.y + box.h]]) {
    if (step === 0) {
      if (from <= least || from >= most) return false;
      continue;
    }
    const ends = [(least - from) / step, (most - from) / step].sort((a, b) => a - b);
    low = Math.max(low, ends[0]);
    high = Math.min(high, ends[1]);
  }
  return low < high;
}

const side = (p, q, r) => Math.sign((q.x - p.x) * (r.y - p.y) - (q.y - p.y) * (r.x - p.x));

const around = (box, p) => box.x <= p.x && p.x <= box.x + box.w && box.y <= p.y && p.y <= box.y + box.h;

/** Return whether two lines cross within both. */
const meet = ([a, b], [c, d]) => side(a, b, c) * side(a, b, d) < 0 && side(c, d, a) * side(c, d, b) < 0;

/**
 * Place labels next to their points, in the given order, so that no label covers a label, a point, a line or
 * an arrow, or leaves the area, and no line to a label crosses another or a point far from its own.
 *
 * ``points``: x, y, and width and height of the label; ``arrows``: pairs of ends. Returns for each point the
 * centre of its label and whether a line must lead to it, or null if no place is left.
 */
export function placeLabels(points, { width, height }, arrows = []) {
  const dots = points.map(({ x, y }) => ({ x: x - 3, y: y - 3, w: 6, h: 6 }));
  const boxes = [];
  const lines = [];
  const free = (box, line) =>
    box.x >= 0 && box.y >= 0 && box.x + box.w <= width && box.y + box.h <= height
    && !boxes.some((other) => overlap(box, other) || (line && crosses(other, ...line)))
    && !dots.some((dot) => overlap(box, dot))
    && ![...arrows, ...lines].some((other) => crosses(box, ...other))
    && !(line && (lines.some((other) => meet(line, other)) || dots.some((dot) => !around(dot, line[0]) && crosses(dot, ...line))));

  return points.map((point) => {
    const outward = Math.atan2(point.y - height / 2, point.x - width / 2);
    for (const [i, distance] of DISTANCES.entries()) {
      for (let turn = 0; turn < DIRECTIONS; turn += 1) {
        // Outward first, then alternately to both sides.
        const angle = outward + (turn % 2 ? 1 : -1) * Math.ceil(turn / 2) * (2 * Math.PI / DIRECTIONS);
        const [cos, sin] = [Math.cos(angle), Math.sin(angle)];
        const gap = 3 + distance * point.h;
        const centre = { x: point.x + cos * (gap + point.w / 2), y: point.y + sin * (gap + point.h / 2) };
        const box = { x: centre.x - point.w / 2 - PAD, y: centre.y - point.h / 2 - PAD, w: point.w + 2 * PAD, h: point.h + 2 * PAD };
        const line = i > 1 ? [point, centre] : null;
        if (!free(box, line)) continue;
        boxes.push(box);
        if (line) lines.push(line);
        return { ...centre, line: line !== null };
      }
    }
    return null;
  });
}

/** Shorten a text in its middle: names of one table often differ at their ends. */
export function shorten(text, most) {
  const letters = [...text];
  if (letters.length <= most) return text;
  const tail = Math.floor((most - 1) / 2);
  return [...letters.slice(0, most - 1 - tail), "…", ...(tail ? letters.slice(-tail) : [])].join("");
}

const shared = (texts) => [...texts[0]].findIndex((letter, i) => texts.some((text) => [...text][i] !== letter));

/** Shorten names; of those that would look the same, show what follows their common beginning, or their number. */
export function shortenAll(names, numbers, most) {
  const alike = (texts, i) => texts.map((_, j) => j).filter((j) => texts[j] === texts[i]);
  const short = names.map((name) => shorten(name, most));
  const distinct = short.map((text, i) => {
    const group = alike(short, i);
    if (group.length < 2) return text;
    const from = shared(group.map((j) => names[j]));
    return from < 2 ? text : shorten(`…${[...names[i]].slice(from).join("")}`, most);
  });
  return distinct.map((text, i) => (alike(distinct, i).length > 1 ? `${shorten(text, most - 3 - String(numbers[i]).length)} (${numbers[i]})` : text));
}
