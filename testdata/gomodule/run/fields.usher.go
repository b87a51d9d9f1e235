//go:build usher

package main

// Structs with fields that hide each other.
type (
	A struct {
		X, Y int
		Z    string `json:"zed"`
	}
	B struct {
		X int `json:"x"`
		Y int
	}
	C struct {
		A
		B
		W bool
	}
	D struct {
		C
		Y      string `json:"Y"`
		hidden int
		Skip   int `json:"-"`
		Dash   int `json:"-,"`
	}
	E struct {
		Named A
		A     A `json:"a"`
		T
		N
		U `json:"u"`
	}
	T       []int
	N       int
	U       struct{ Q int }
	GoTestM map[string]int
	F       struct {
		GoTestM
		E
		Bad int `json:"a,b"`
	}
	G struct {
		A
		H
	}
	H struct{ A }
	I struct {
		J
		K
		L
	}
	J struct{ U }
	K struct{ U }
	L struct{ U }
	O struct {
		A int `json:"B"`
		B int
		C int `json:"D"`
		D int
	}
	P struct {
		*P
		B int
	}
)

func ZeroA(p A) (A, error) { return p, nil }

func ZeroC(p C) (C, error) { return p, nil }

func ZeroD(p D) (D, error) { return p, nil }

func ZeroE(p E) (E, error) { return p, nil }

func ZeroF(p F) (F, error) { return p, nil }

func ZeroG(p G) (G, error) { return p, nil }

func ZeroI(p I) (I, error) { return p, nil }

func ZeroO(p O) (O, error) { return p, nil }

func ZeroP(p P) (P, error) { return p, nil }
