package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// imageName is what the image of the demo is called. No registry has names of localhost.
const imageName = "localhost/hello:demo"

// writeImage packs a static program alone into an image, in a file as `docker save` writes it.
func writeImage(program, path string) error {
	binary, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	var files bytes.Buffer
	w := tar.NewWriter(&files)
	err = w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "hello", Mode: 0o755, Size: int64(len(binary))})
	if err == nil {
		_, err = w.Write(binary)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		return fmt.Errorf("layer of the image: %w", err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(files.Bytes())), nil
	})
	if err != nil {
		return fmt.Errorf("layer of the image: %w", err)
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return fmt.Errorf("image: %w", err)
	}
	file, err := image.ConfigFile()
	if err != nil {
		return fmt.Errorf("image: %w", err)
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", runtime.GOARCH
	file.Config = v1.Config{Entrypoint: []string{"/hello", "-all"}, User: "65534"}
	if image, err = mutate.ConfigFile(image, file); err != nil {
		return fmt.Errorf("image: %w", err)
	}
	tag, err := name.NewTag(imageName)
	if err != nil {
		return err
	}
	return tarball.WriteToFile(path, tag, image)
}
