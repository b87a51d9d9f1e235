// Receives messages from a website's contact form, and lists them.

import { appendFile, readFile } from 'node:fs/promises'

const inbox = 'messages.jsonl' // a module runs in its own folder

/**
 * Receives a message. It is a webhook because its name begins with "handle":
 * POST /webhook/contact/handleMessage
 *
 * @param {string} email address to reply to
 * @param {string} text the message
 */
export async function handleMessage({ email, text }) {
  if (!/^\S+@\S+$/.test(email)) { // the visitor sees this text; a thrown error would be a 500
    return { _response: { status: 400, body: `${email} is not an email address. Go back and correct it.` } }
  }
  const at = new Date().toISOString()
  await appendFile(inbox, JSON.stringify({ at, email, text: text.slice(0, 5000) }) + '\n')
  return { thanks: email }
}

/**
 * Lists the received messages, newest first.
 *
 * @param {integer} [limit=10] maximum number of messages
 * @readonly
 */
export async function messages({ limit = 10 }) {
  const lines = await readFile(inbox, 'utf8').catch(() => '')
  const list = lines.split('\n').filter(line => line !== '').map(line => JSON.parse(line))
  return { messages: list.reverse().slice(0, limit) }
}
