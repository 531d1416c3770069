// Command misbehave is a workload of the end-to-end tests. Its first argument says what it does:
//
//	crash    ends with code 7 at once
//	say      writes its second argument to its output, and then waits for the end
//	secret   answers HTTP with the SHA-256 of $PASSWORD and of $COLLOID_FILES/etc/key
//	slow     answers HTTP, but not in its first three seconds
//	yes      prints lines as fast as it can
//
// It is no example: see examples/hello.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

// terminated ends at SIGTERM. Before it is asked for, that ends the program as it would any other.
func terminated() context.Context {
	ctx, _ := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	return ctx
}

func main() {
	if len(os.Args) < 2 {
		os.Exit(7)
	}
	switch os.Args[1] {
	case "say":
		if len(os.Args) > 2 {
			fmt.Println(os.Args[2])
		}
		<-terminated().Done()
	case "secret":
		serve(secrets())
	case "slow":
		time.Sleep(3 * time.Second)
		serve(fmt.Sprintf("slow pid %d\n", os.Getpid()))
	case "yes":
		lines := bytes.Repeat([]byte("yes, and again yes, and once more for the record\n"), 1000)
		for {
			if _, err := os.Stdout.Write(lines); err != nil {
				os.Exit(1)
			}
		}
	default:
		os.Exit(7)
	}
}

func secrets() string {
	key, err := os.ReadFile(filepath.Join(os.Getenv("COLLOID_FILES"), "etc/key"))
	if err != nil {
		fmt.Fprintf(os.Stderr, "misbehave: %v\n", err)
		os.Exit(1)
	}
	return fmt.Sprintf("%x %x\n", sha256.Sum256([]byte(os.Getenv("PASSWORD"))), sha256.Sum256(key))
}

// serve answers every request in the same way until SIGTERM.
func serve(answer string) {
	server := &http.Server{
		Addr: net.JoinHostPort(os.Getenv("COLLOID_ADDRESS"), os.Getenv("PORT")), ReadHeaderTimeout: 5 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, answer) }),
	}
	ctx, done := terminated(), make(chan struct{})
	go func() {
		defer close(done)
		<-ctx.Done()
		limit, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = server.Shutdown(limit)
	}()
	if err := server.ListenAndServe(); err != http.ErrServerClosed {
		fmt.Fprintf(os.Stderr, "misbehave: %v\n", err)
		os.Exit(1)
	}
	<-done
}
