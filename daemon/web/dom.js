/* The only way the page makes elements: text goes in as text, never as markup. */

export const $ = (id) => document.getElementById(id);

/* A new element. Properties are set as properties, "data" as the data set; children are elements or strings. */
export function make(tag, { data = {}, ...properties } = {}, ...children) {
    const element = Object.assign(document.createElement(tag), properties);
    Object.assign(element.dataset, data);
    element.append(...children);
    return element;
}

/* Shows text in an element and hides the element when there is none. Writes only what changed, so that live regions stay quiet. */
export function say(element, text) {
    if (element.textContent !== text) {
        element.textContent = text;
    }
    element.hidden = text === '';
}
