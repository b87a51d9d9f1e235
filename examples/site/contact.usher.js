// Takes messages from the contact form of a website, and shows them to you.

import { appendFile, readFile } from 'node:fs/promises'

const inbox = 'messages.jsonl' // a module runs in its own folder

/**
 * Takes a message. A webhook, as its name begins with "handle":
 * POST /webhook/contact/handleMessage
 *
 * @param {string} email where to answer
 * @param {string} text the message
 */
export async function handleMessage({ email, text }) {
  if (!/^\S+@\S+$/.test(email)) throw new Error('email is not an address')
  const at = new Date().toISOString()
  await appendFile(inbox, JSON.stringify({ at, email, text: text.slice(0, 5000) }) + '\n')
  return { thanks: email }
}

/**
 * Lists the messages that came, newest first.
 *
 * @param {integer} [limit=10] at most so many
 * @readonly
 */
export async function messages({ limit = 10 }) {
  const lines = await readFile(inbox, 'utf8').catch(() => '')
  const list = lines.split('\n').filter(line => line !== '').map(line => JSON.parse(line))
  return { messages: list.reverse().slice(0, limit) }
}
