// Measures the page: whether it is wider than the window, what is black on black, what it is made of.
(() => {
	const light = color => {
		const linear = n => n <= 0.04045 ? n / 12.92 : ((n + 0.055) / 1.055) ** 2.4
		const [r, g, b] = color.match(/[\d.]+/g).map(n => linear(n / 255))
		return 0.2126 * r + 0.7152 * g + 0.0722 * b
	}
	const page = getComputedStyle(document.body).backgroundColor
	const faint = [...document.body.querySelectorAll('*')].filter(e => {
		if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) return false
		const own = getComputedStyle(e), back = own.backgroundColor === 'rgba(0, 0, 0, 0)' ? page : own.backgroundColor
		const [x, y] = [light(own.color), light(back)].sort((x, y) => y - x)
		return (x + 0.05) / (y + 0.05) < 4.5
	}).map(e => e.outerHTML)
	return JSON.stringify({
		over: document.documentElement.scrollWidth > innerWidth,
		dark: light(page) < 0.2,
		faint,
		title: document.title,
		made: document.querySelectorAll('script, img, b, iframe').length,
		broken: [...document.querySelectorAll('pre span')].filter(e => e.getClientRects().length > 1).length,
		text: document.body.innerText.includes('onerror=alert(1)'),
		size: getComputedStyle(document.body).fontSize,
	})
})()
