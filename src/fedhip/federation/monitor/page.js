// Every two seconds the page is asked for anew, and what it shows is put in place of what is shown.
"use strict";
const EVERY = 2000;

async function refresh() {
  const banner = document.getElementById("lost");
  try {
    const answer = await fetch("./", { cache: "no-store", signal: AbortSignal.timeout(8000) });
    if (!answer.ok) throw new Error(String(answer.status));
    const made = new DOMParser().parseFromString(await answer.text(), "text/html");
    const open = [...document.querySelectorAll("details")].map((each) => each.open);
    document.title = made.title;
    document.querySelector("main").replaceWith(made.querySelector("main"));
    document.querySelectorAll("details").forEach((each, place) => { each.open = open[place] ?? each.open; });
    banner.hidden = true;
  } catch {
    banner.hidden = false;
  }
  setTimeout(refresh, EVERY);
}

setTimeout(refresh, EVERY);
