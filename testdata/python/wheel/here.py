version = '1.5'
