package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"
)

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	response, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

func TestAnswersNameTheCell(t *testing.T) {
	server := httptest.NewServer(handler("00000000000000a1"))
	defer server.Close()
	want := fmt.Sprintf("hello from cell 00000000000000a1 pid %d\n", os.Getpid())
	if code, body := get(t, server.URL+"/"); code != 200 || body != want {
		t.Errorf("GET / = %d %q, want 200 %q", code, body, want)
	}
	if code, body := get(t, server.URL+"/healthz"); code != 200 || body != "ok\n" {
		t.Errorf("GET /healthz = %d %q", code, body)
	}
}

func TestStopClosesTheListenerAndEndsCleanly(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	listener.Close()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- serve(ctx, address) }()
	for deadline := time.Now().Add(5 * time.Second); ; {
		if connection, err := net.Dial("tcp", address); err == nil {
			connection.Close()
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("never listens")
		}
		time.Sleep(time.Millisecond)
	}
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if _, err := net.Dial("tcp", address); err == nil {
		t.Fatal("still listens after the stop")
	}
}
