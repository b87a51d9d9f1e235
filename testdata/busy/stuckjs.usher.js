export const pid = () => process.pid
export const spin = () => { console.log('stuckjs spins'); for (;;); }
