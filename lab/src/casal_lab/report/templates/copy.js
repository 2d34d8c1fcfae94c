
// A button copies what stands before it.
for (const button of document.querySelectorAll(".copy")) {
  button.addEventListener("click", async () => {
    const range = document.createRange();
    range.selectNode(button.previousSibling);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    try {
      await navigator.clipboard.writeText(button.previousSibling.textContent);
      button.textContent = "copied";
    } catch {
      button.textContent = "selected";
    }
  });
}
