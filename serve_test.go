package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"math/big"
	"sync"
	"testing"
)

// A renewed certificate is used without a restart. While its files do not match, the
// previous one is.
func TestCertificateIsReadAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	flags := &serveFlags{addr: "127.0.0.1:0", tlsCert: dir + "/cert", tlsKey: dir + "/key"}
	d := &daemon{flags: flags, log: slog.New(slog.DiscardHandler)}
	renew := func(serial int64) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		must(t, err)
		is := &x509.Certificate{SerialNumber: big.NewInt(serial)}
		cert, _ := x509.CreateCertificate(rand.Reader, is, is, key.Public(), key)
		raw, _ := x509.MarshalPKCS8PrivateKey(key)
		write(t, dir+"/cert", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})))
		write(t, dir+"/key", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})))
	}
	renew(1)
	_, err := d.listen()
	must(t, err)
	defer d.listener.Close()
	wantSerial := func(want int64) {
		t.Helper()
		var accepting sync.WaitGroup
		accepting.Go(func() {
			conn, _ := d.listener.Accept()
			conn.(*tls.Conn).Handshake()
			conn.Close()
		})
		conn, err := tls.Dial("tcp", d.listener.Addr().String(), &tls.Config{InsecureSkipVerify: true})
		must(t, err)
		check(t, "serial number", conn.ConnectionState().PeerCertificates[0].SerialNumber.Int64(), want)
		conn.Close()
		accepting.Wait()
	}
	wantSerial(1)
	renew(2)
	wantSerial(2)
	write(t, dir+"/key", "half a key")
	wantSerial(2)
	renew(3)
	wantSerial(3)
}
