// Looks at the words of a text: how many, how hard to read, which are used most.

import { readFile } from 'node:fs/promises'
import path from 'node:path'

/**
 * Counts words and sentences of a text, and says how easy it is to read: the
 * Flesch reading ease, where 60 is plain English and 30 hard.
 *
 * @param {string} [text] the text itself
 * @param {string} [file] or a text file of this folder; XML is read without its tags
 * @readonly
 */
export async function readability(params) {
  const text = await textOf(params)
  const words = wordsOf(text)
  if (words.length === 0) throw new Error('there are no words in it')
  const sentences = [...new Intl.Segmenter('en', { granularity: 'sentence' }).segment(text)].filter(s => /\p{L}/u.test(s.segment)).length
  const syllables = words.reduce((sum, word) => sum + syllablesOf(word), 0)
  const ease = 206.835 - 1.015 * words.length / sentences - 84.6 * syllables / words.length
  return {
    words: words.length,
    sentences,
    readingEase: Math.round(10 * ease) / 10,
    minutes: Math.ceil(words.length / 240), // at the pace of silent reading
  }
}

/**
 * Lists the words that a text uses most.
 *
 * @param {string} [text] the text itself
 * @param {string} [file] or a text file of this folder; XML is read without its tags
 * @param {integer} [limit=10] how many words
 * @param {integer} [longerThan=3] words of so few letters do not count
 * @readonly
 */
export async function frequent({ text, file, limit = 10, longerThan = 3 }) {
  const counts = new Map()
  for (const word of wordsOf(await textOf({ text, file }))) {
    if (word.length > longerThan) counts.set(word, (counts.get(word) ?? 0) + 1)
  }
  const list = [...counts].sort(([a, m], [b, n]) => n - m || a.localeCompare(b))
  return { words: list.slice(0, limit).map(([word, count]) => ({ word, count })) }
}

async function textOf({ text, file }) {
  if (text !== undefined) return text
  if (file === undefined) throw new Error('want text or file')
  if (path.isAbsolute(file) || path.normalize(file).startsWith('..')) throw new Error('file: want one of this folder')
  const whole = await readFile(file, 'utf8') // a module runs in its own folder
  return whole.replace(/<\?[^]*?\?>|<[^>]*>/g, ' ')
}

function wordsOf(text) {
  return (text.match(/\p{L}+(?:['’]\p{L}+)*/gu) ?? []).map(word => word.toLowerCase())
}

// syllablesOf counts groups of vowels, which is right for most English words.
function syllablesOf(word) {
  const groups = word.replace(/e$/, '').match(/[aeiouy]+/g) ?? []
  return Math.max(groups.length, 1)
}
