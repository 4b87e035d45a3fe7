// Long work in slices of a few milliseconds, one for each frame: typing and scrolling never wait for it.

const SLICE = 5, AT_ONCE = 2048;

// Returns run(count, work, done): calls work(from, to) until everything is done, then done(). Work that fits into one
// slice is done at once. A new run ends the one before.
export function slices() {
  const channel = new MessageChannel();
  let turn = 0, next = null;
  channel.port1.onmessage = () => { const work = next; next = null; if (work) work(); };
  const later = (work) => { next = work; requestAnimationFrame(() => channel.port2.postMessage(0)); };
  return (count, work, done) => {
    const mine = ++turn;
    let at = 0;
    const slice = () => {
      if (mine !== turn) return;
      const begun = performance.now();
      while (at < count) {
        const to = Math.min(at + AT_ONCE, count);
        work(at, to);
        at = to;
        if (performance.now() - begun > SLICE) { later(slice); return; }
      }
      done();
    };
    slice();
  };
}
