package runnerdtest

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"colloid.net/runnerd/image"
	"colloid.net/runnerd/shim"
	"colloid.net/runnerd/wasm"
	"colloid.net/workload"
)

// Main lets a test binary be shim, stage, workload and the children for images as well; TestMain calls it first.
func Main() {
	if exit, is := image.Children(); is {
		os.Exit(exit)
	}
	if exit, is := shim.Children(); is {
		os.Exit(exit)
	}
	if len(os.Args) == 2 && os.Args[1] == wasm.Argument {
		os.Exit(wasm.Main(shim.ExtraFirst))
	}
	if len(os.Args) >= 3 && os.Args[1] == "workload" {
		os.Exit(workloadMain(os.Args[2:]))
	}
}

// workloadMain is the test workload: one word says what it does.
func workloadMain(words []string) int {
	switch words[0] {
	case "sleep":
		fmt.Println("sleeping")
		time.Sleep(time.Hour)
	case "exit":
		fmt.Println("leaving")
		return len(words) - 2 // "exit" = -1 -> 255, "exit x" = 0, "exit x y" = 1
	case "stubborn": // does not end on SIGTERM
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("stubborn")
		time.Sleep(time.Hour)
	case "tree": // children and grandchildren, one of them in another session
		for _, script := range []string{
			"sleep 3210", "setsid sleep 3210 & sleep 3210", "(setsid sleep 3210 &) ; sleep 3210",
		} {
			_ = exec.Command("/bin/sh", "-c", script).Start()
		}
		signal.Ignore(syscall.SIGTERM)
		time.Sleep(time.Hour)
	case "yes":
		block := bytes.Repeat([]byte("yyyyyyyyyyyyyyy\n"), 512)
		for {
			if _, err := os.Stdout.Write(block); err != nil {
				return 1
			}
		}
	case "tick":
		for n := 0; ; n++ {
			fmt.Println("tick", n)
			time.Sleep(20 * time.Millisecond)
		}
	case "listen":
		return listenMain()
	case "show":
		show()
		time.Sleep(time.Hour)
	}
	return 3
}

// listenMain serves on PORT of COLLOID_ADDRESS: / is 200 while the file "sick" is absent from the working directory.
func listenMain() int {
	listener, err := net.Listen("tcp", net.JoinHostPort(os.Getenv("COLLOID_ADDRESS"), os.Getenv("PORT")))
	if err != nil {
		fmt.Println(err)
		return 1
	}
	_ = http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if _, err := os.Stat("sick"); err == nil {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	return 1
}

// show writes what it is to the file "shown" in its working directory.
func show() {
	status, _ := os.ReadFile("/proc/self/status")
	descriptors, _ := os.ReadDir("/proc/self/fd")
	file, err := os.Create("shown.new")
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, variable := range os.Environ() {
		fmt.Fprintln(file, "env", variable)
	}
	for _, descriptor := range descriptors {
		target, _ := os.Readlink("/proc/self/fd/" + descriptor.Name())
		fmt.Fprintln(file, "fd", descriptor.Name(), target)
	}
	directory, _ := os.Getwd()
	fmt.Fprintln(file, "arguments", strings.Join(os.Args, " "))
	fmt.Fprintln(file, "directory", directory)
	file.Write(status)
	file.Close()
	os.Rename("shown.new", "shown")
}

// Binary copies the test binary to a place where policies accept it, and gives path and digest.
func Binary(t testing.TB, directory string) (path, digest string) {
	t.Helper()
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	path = filepath.Join(directory, "workload")
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	hash := sha256.New()
	if _, err := io.Copy(io.MultiWriter(file, hash), self); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	return path, fmt.Sprintf("%x", hash.Sum(nil))
}

// Spec is a specification that runs the test workload.
func Spec(path string, words ...string) *workload.Spec {
	return &workload.Spec{
		Runtime: workload.RuntimeProcess, Replicas: 1, Image: path,
		Arguments: append([]string{"workload"}, words...),
	}
}
