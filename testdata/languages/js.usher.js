/**
 * Takes a contact form.
 * @param {string} email where to answer
 * @param {string} message what it is about
 * @param {integer} [copies] how many to send
 */
export function handleContact(form) {
  if (form._webhook && Date.now() - form._webhook.timestamp > 60_000) throw new Error('the request is too old')
  return { copies: form.copies ?? 1, thanks: form.email }
}

/** Takes a second. */
export async function pause() {
  await new Promise((resolve) => setTimeout(resolve, 1000))
  return 'done'
}
