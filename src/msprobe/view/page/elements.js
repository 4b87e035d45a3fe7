// Creates elements. Text from a dump stays text: nothing here parses markup.

export function el(tag, properties, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") element.className = value;
    else if (name === "text") element.textContent = value;
    else if (name.startsWith("on")) element[name] = value;
    else if (name === "data") Object.assign(element.dataset, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

export function byId(id) {
  return document.getElementById(id);
}

export function dot(look) {
  return el("span", { class: "dot " + look, "aria-hidden": "true" });
}

let timer = 0;
export function say(text) {
  byId("message").textContent = text;
  clearTimeout(timer);
  timer = setTimeout(() => { byId("message").textContent = ""; }, 5000);
}

// A canvas as sharp as the screen, cleared, with sizes in CSS pixels.
export function drawing(canvas, height) {
  const width = Math.max(canvas.clientWidth, 1), tall = height || Math.max(canvas.clientHeight, 1);
  const scale = window.devicePixelRatio || 1;
  canvas.width = width * scale;
  canvas.height = tall * scale;
  if (height) canvas.style.height = height + "px";
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  pen.font = "11px system-ui, sans-serif";
  return { pen, width, height: tall };
}

// Resolves when the browser has painted what the page shows now, or soon in a tab that nobody looks at.
export function painted() {
  return new Promise((done) => {
    requestAnimationFrame(() => setTimeout(done));
    setTimeout(done, 250);
  });
}

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
}

// "#rrggbb" as the four bytes of a pixel, for ImageData.
export function pixel(hex) {
  const value = parseInt(hex.slice(1), 16);
  return (255 << 24) | ((value & 255) << 16) | (((value >> 8) & 255) << 8) | (value >> 16);
}

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = el("textarea", { text });
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}
