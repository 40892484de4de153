// The live form: a text is sent to the process that serves this page, and its answer is drawn while it comes.

function connectLive(view, live) {
  const form = document.getElementById("live"), text = document.getElementById("live-text");
  const loops = document.getElementById("live-loops"), state = document.getElementById("live-state");
  form.hidden = false;
  text.value = live.text;
  loops.value = live.loops;
  loops.max = live.most_loops;
  live.runs.forEach((label, place) => {
    const box = html("input", { type: "checkbox", value: place });
    box.checked = place < 2;
    document.getElementById("live-runs").append(html("label", {}, box, ` ${label}`));
  });
  let current = null;
  const look = async () => {
    if (current) current.abort();
    const mine = current = new AbortController();
    const runs = [...form.querySelectorAll("#live-runs input:checked")].map(box => Number(box.value));
    const wanted = { text: text.value, runs, loops: Number(loops.value) };
    state.textContent = "computing …";
    view.busy = true;
    delete document.documentElement.dataset.ready;
    try {
      const answer = await fetch("look", { method: "POST", body: JSON.stringify(wanted), signal: mine.signal });
      await follow(view, answer, message => { state.textContent = message; });
      if (current === mine) { view.busy = false; document.documentElement.dataset.ready = "yes"; }
    } catch (error) {
      if (error.name !== "AbortError") state.textContent = "the process that serves this page has ended; start it again";
    }
  };
  form.addEventListener("submit", event => { event.preventDefault(); look(); });
  text.addEventListener("keydown", event => {
    if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); look(); }
  });
  if (live.text) look(); else { text.focus(); document.documentElement.dataset.ready = "yes"; }
}

/** Draw the lines of an answer as they arrive. */
async function follow(view, answer, say) {
  const runs = [], reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) await take(view, runs, JSON.parse(line), say);
  }
}

async function take(view, runs, event, say) {
  if (event.error) { say(event.error); return; }
  if (event.head) {
    runs.push(await beginRun(event.head));
    view.open([...runs]);
  }
  const run = runs[event.run];
  if (event.part) {
    await addPart(run, event.part);
    say(`${run.label}: ${run.known.reduce((a, b) => a + b)} of ${run.rows} tokens`);
    view.refresh("all");
  }
  if (event.end) {
    run.packedAttention = event.attention;
    view.describe();
    view.refresh("all");
  }
  if (event.seconds !== undefined) say(`done in ${digits(event.seconds, 2)} s`);
}
