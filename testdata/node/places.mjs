/** Another file's comment. */
export function imported({ a }) { return a }
export const same = p => p
