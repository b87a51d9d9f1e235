/**
 * Keeps notes.
 */

/**
 * A note.
 * @typedef {Object} Note
 * @property {string} text the text, see {@link list}
 * @property {Integer} [days=3] how long to keep it
 * @property {Object} [by] the author
 * @property {String} by.name the author's name
 */

/** @typedef {'low'|"high"} Level */

/**
 * @summary Adds a note.
 * @param {Note} note
 * @param {Level} note.level not of the type
 * @returns {number} how many there are
 */

export function add(note) { return note }

/**
 * Adds it in pieces.
 * @param {Note} note
 */
export const pieces = ({ text, days = 3, other }) => [text, days, other]

/**
 * Adds all.
 * @param {Object[]} notes the notes
 * @param {string} notes[].text a text
 * @param {?Level} [level='low'] how
 *   important
 * @param {Array.<number>=} days
 * @param {!Object.<string, !boolean>} flags
 * @param {string|null} by
 * @param {(string|number)[]} ids
 * @param {*} any
 * @param {{a: string, b?: number}} inline
 */
export function addAll(notes, level, days, flags, by, ids, any, inline) { return notes }

/**
 * @arg {string} params.name who
 * @arg {number} [params.times=2]
 * @arg other not there
 */
export const greet = async params => params
