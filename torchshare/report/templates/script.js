"use strict";
// A box in the legend hides what the charts show of one job. Without JavaScript there are no boxes.
for (const label of document.querySelectorAll(".legend label")) {
  const box = document.createElement("input");
  box.type = "checkbox";
  box.checked = true;
  label.prepend(box);
  box.addEventListener("change", () => {
    for (const curve of document.querySelectorAll(`svg [id$=".${label.dataset.curve}"]`)) {
      curve.classList.toggle("hidden", !box.checked);
    }
  });
}
