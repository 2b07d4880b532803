"use strict";
// Every page works without this. It loads the live part anew when the server says that there is
// something new, and draws the lines over time.
(() => {
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);
  const busy = () => {
    const at = document.activeElement;
    return document.hidden || (at && at.closest("#live") && at.matches("input, select, textarea"));
  };

  const charts = [];
  async function draw(figure) {
    const answer = await fetch(figure.dataset.trend, { headers: { Accept: "application/json" } });
    if (!answer.ok) return;
    const { names, data } = await answer.json();
    if (data[0].length < 2) return;
    const plot = figure.querySelector(".plot");
    let chart = charts.find((one) => one.figure === figure);
    if (chart) {
      chart.plot.setData(data);
      return;
    }
    const axis = { stroke: colour("--faint"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 }, size: 44 };
    const strokes = [colour("--blue"), colour("--orange")];
    const options = {
      width: plot.clientWidth,
      height: 140,
      legend: { show: false },
      series: [{}, ...names.map((label, at) => ({ label, stroke: strokes[at], width: 1.5, points: { show: false } }))],
      axes: [{ ...axis, size: 26 }, axis],
      scales: { y: { range: (_, low, high) => [0, Math.max(high, 1)] } },
    };
    plot.replaceChildren();
    chart = { figure, plot: new uPlot(options, data, plot) };
    charts.push(chart);
    new ResizeObserver(() => chart.plot.setSize({ width: plot.clientWidth, height: 140 })).observe(figure);
  }

  const figures = [...document.querySelectorAll("[data-trend]")];
  const drawAll = () => figures.forEach((figure) => draw(figure).catch(() => {}));
  drawAll();

  const live = document.querySelector("[data-live]");
  if (!live && !figures.length) return;
  let loading = false;
  const load = async () => {
    if (busy() || loading) return;
    loading = true;
    try {
      if (live) {
        await htmx.ajax("GET", location.href, { target: "#live", select: "#live", swap: "outerMorph" });
      }
      drawAll();
    } finally {
      loading = false;
    }
  };
  // Of one site a browser keeps six connections: tabs that nobody sees have none.
  let source;
  const follow = () => {
    source?.close();
    if (document.hidden) return;
    source = new EventSource("events");
    source.onmessage = load;
  };
  follow();
  document.addEventListener("visibilitychange", follow);
  addEventListener("pagehide", () => source?.close());
})();
