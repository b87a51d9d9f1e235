package main

import "testing"

func TestSmoke(t *testing.T) {
	dir := t.TempDir()
	writeFake(t, dir+"/a.usher", "good")
	d := serveHere(t, dir)
	c := connect(t, d.URL)
	t.Log(c.tools())
	t.Log(c.call("a_echo", `{"x":1}`).Body)
	t.Log(c.call("a_progress", `{"n":2}`).Body)
	t.Log(c.call("a_crash", ``).Body)
	t.Log(c.call("a_pid", ``).Body)
	d.stop(t)
	t.Log(d.Out.String(), d.Log.String())
}
