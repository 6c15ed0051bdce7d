// Shows the turns of each game one at a time. Without it, they are lists that open.
for (const game of document.querySelectorAll(".game")) {
  const list = game.querySelector("details");
  const turns = [...list.querySelectorAll(".turn")];
  if (!turns.length) continue;
  const controls = document.createElement("div");
  controls.className = "controls";
  controls.setAttribute("role", "group");
  controls.setAttribute("aria-label", "Turns of the game");
  const add = (tag, text, settings) => {
    const made = Object.assign(document.createElement(tag), settings);
    made.textContent = text;
    controls.append(made);
    return made;
  };
  const button = (text, act) => add("button", text, { type: "button", onclick: act });
  let place = 0, timer = null, all = false;
  const show = (wanted) => {
    place = Math.min(Math.max(wanted, 0), turns.length - 1);
    turns.forEach((turn, at) => { turn.hidden = !all && at !== place; });
    list.classList.toggle("one", !all);
    list.open = true;
    slider.value = place;
    const parts = [...turns[place].querySelector("header").childNodes];
    slider.setAttribute("aria-valuetext", parts.map((part) => part.textContent).join(", "));
    count.textContent = `${place + 1} of ${turns.length}`;
    previous.disabled = all || place === 0;
    next.disabled = all || place === turns.length - 1;
    slider.disabled = play.disabled = all;
  };
  const stop = () => { clearInterval(timer); timer = null; play.textContent = "Play"; };
  const go = (wanted) => { stop(); show(wanted); };
  const previous = button("Previous", () => go(place - 1));
  const play = button("Play", () => {
    if (timer) return stop();
    if (place === turns.length - 1) show(0);
    play.textContent = "Pause";
    timer = setInterval(() => {
      show(place + 1);
      if (place === turns.length - 1) stop();
    }, 1200);
  });
  const next = button("Next", () => go(place + 1));
  const slider = add("input", "", { type: "range", min: 0, max: turns.length - 1, value: 0 });
  slider.setAttribute("aria-label", "Turn");
  slider.oninput = () => go(Number(slider.value));
  const count = add("output", "");
  const whole = button("All turns", () => {
    all = !all;
    whole.setAttribute("aria-pressed", all);
    go(place);
  });
  whole.setAttribute("aria-pressed", false);
  game.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || all || event.target === slider || event.altKey || event.ctrlKey || event.metaKey) {
      return;
    }
    event.preventDefault();
    go(place + by);
  });
  list.before(controls);
  show(0);
}
