import os

async def pid(): return os.getpid()

async def spin():
    print('stuckasync spins')
    while True: pass
