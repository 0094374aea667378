// Texts whose colour stands out less than 4.5 to 1 from the ground that the browser painted below them.
(() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const rgb = (...layers) => {
    canvas.clearRect(0, 0, 1, 1);
    for (const one of layers) { canvas.fillStyle = one; canvas.fillRect(0, 0, 1, 1); }
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (colour) => {
    const [r, g, b] = colour.map((v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  // Hidden text, curves, what both rollouts share, and what is switched off are meant to be pale.
  const pale = '.unseen, .skip, svg, [aria-busy], .same, :disabled, [aria-pressed="false"].key';
  const found = [];
  for (const e of document.querySelectorAll("body *")) {
    const hasText = [...e.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!hasText || !e.checkVisibility() || e.closest(pale)) continue;
    const layers = [];
    for (let up = e; up; up = up.parentElement) layers.unshift(getComputedStyle(up).backgroundColor);
    const back = rgb(...layers), front = rgb(...layers, getComputedStyle(e).color);
    const [a, b] = [light(back), light(front)].sort((x, y) => y - x), ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) found.push(`${ratio.toFixed(2)} ${e.className} ${e.textContent.slice(0, 30)}`);
  }
  return [...new Set(found)];
})()
