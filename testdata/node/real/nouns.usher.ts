// English nouns, one and many.

import pluralize from 'pluralize'

/** What is asked of a word. */
interface Word {
  /** one English noun */
  word: string
}

/**
 * Makes a noun plural, or singular, as a number of things needs it.
 * @readonly
 */
export function count({ word, count, inclusive = true }: Word & {
  count: number // how many there are
  inclusive?: boolean // whether the number is written before the word
}) {
  return pluralize(word, count, inclusive)
}

/** Makes a noun singular. */
export function singular({ word }: Word) {
  return pluralize.singular(word)
}

/** Tells what a noun is, and gives both forms of each of many. */
export function* forms({ words }: { words: string[] }) {
  for (const [i, word] of words.entries()) yield { progress: i + 1, total: words.length, message: word }
  return { forms: words.map(word => ({ one: pluralize.singular(word), many: pluralize.plural(word), isPlural: pluralize.isPlural(word) })) }
}
