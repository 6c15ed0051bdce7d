// Shows what is new: parts of the page that have changed are replaced, but for the one in use.

const SECONDS = 5;
const parts = (root) => [...root.querySelector("main").children];
// As they came: charts change the document.
let shown = parts(document).map((part) => part.outerHTML);

async function renew() {
  if (document.hidden) return;
  const lost = document.querySelector("#lost");
  try {
    const answer = await fetch(location.pathname, { cache: "no-store" });
    if (!answer.ok) throw new Error(answer.status);
    // Without the styles and scripts around it, whose nonces are not this page's.
    const [main] = /<main>[^]*<\/main>/.exec(await answer.text());
    const fresh = parts(new DOMParser().parseFromString(main, "text/html"));
    const old = parts(document), texts = fresh.map((part) => part.outerHTML);
    const used = (part) => part.contains(document.activeElement);
    if (fresh.length !== old.length) {
      if (old.some(used)) return;
      document.querySelector("main").replaceChildren(...fresh);
      shown = texts;
    } else {
      fresh.forEach((part, place) => {
        if (texts[place] === shown[place] || used(old[place])) return;
        old[place].replaceWith(part);
        shown[place] = texts[place];
      });
    }
    for (const [element, { chart }] of drawn) {
      if (!element.isConnected) { chart.destroy(); drawn.delete(element); }
    }
    // Those that are observed already stay as they are.
    for (const element of document.querySelectorAll(".plot")) resized.observe(element);
    lost.hidden = true;
  } catch {
    lost.hidden = false;
  }
}
setInterval(renew, 1000 * SECONDS);
