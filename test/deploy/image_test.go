// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"archive/tar"
	"bytes"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"beeline.io/beeline/internal/offline"
	"beeline.io/beeline/test/node"
)

// imageTool is deploy/image, compiled once.
var imageTool = sync.OnceValues(func() (path string, err error) {
	root, err := node.Sources()
	if err != nil {
		return "", err
	}
	path = filepath.Join(toolFolder, "image")
	if out, err := exec.Command("go", "build", "-C", root, "-o", path, "./deploy/image").CombinedOutput(); err != nil {
		return "", fmt.Errorf("building deploy/image: %w: %s", err, out)
	}
	return path, nil
})

// thirdParty is what `make generate` writes as build/THIRD-PARTY, written once.
var thirdParty = sync.OnceValues(func() (path string, err error) {
	root, err := node.Sources()
	if err != nil {
		return "", err
	}
	path = filepath.Join(toolFolder, "THIRD-PARTY")
	write := exec.Command("go", "run", "./deploy/licences", "--out", path)
	write.Dir = root
	if out, err := write.CombinedOutput(); err != nil {
		return "", fmt.Errorf("running deploy/licences: %w: %s", err, out)
	}
	return path, nil
})

// The licences are those of every module that the program's own build information names, and of the crates that
// Cargo.lock has for the library.
func TestLicencesOfOthers(t *testing.T) {
	path, err := thirdParty()
	must(t, err)
	text := string(read(t, path))
	info, err := buildinfo.ReadFile(beeline)
	must(t, err)
	if len(info.Deps) < 10 {
		t.Errorf("the program names %d modules", len(info.Deps))
	}
	for _, m := range info.Deps {
		if !strings.Contains(text, "\n"+m.Path+" "+m.Version+" (") {
			t.Errorf("no licence of %s %s", m.Path, m.Version)
		}
	}
	for _, name := range []string{"The Go standard library, " + info.GoVersion, "The Rust standard library", "\nlibc 0."} {
		if !strings.Contains(text, name) {
			t.Errorf("no licence of %q", name)
		}
	}
}

// hostStack is a file that `make hoststack` has built.
func hostStack(t *testing.T, name string) string {
	t.Helper()
	path := sources(t, filepath.Join("bin", name))
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v (`make hoststack` builds it)", err)
	}
	return path
}

// makeImage runs what `make image` runs, and returns the path of the image's file.
func makeImage(t *testing.T, program, library, version string) (path string, err error) {
	t.Helper()
	tool, err := imageTool()
	must(t, err)
	others, err := thirdParty()
	must(t, err)
	path = filepath.Join(t.TempDir(), "build", "image.tar") // the folder does not exist in a fresh clone
	out, err := exec.Command(tool, "--program", program, "--library", library, "--licence", sources(t, "LICENSE"), "--third-party", others,
		"--version", version, "--reference", testImage, "--created", "1767225600", "--out", path).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return path, err
}

// loadImage makes the image of the program under test, and reads it as a registry would.
func loadImage(t *testing.T) v1.Image {
	t.Helper()
	path, err := makeImage(t, beeline, hostStack(t, offline.LibraryName), "v0.0.0-test")
	must(t, err)
	image, err := tarball.ImageFromPath(path, nil)
	must(t, err)
	return image
}

// The file is a valid OCI layout and a valid docker archive of one image. It has one program, which needs
// nothing else, and the library for pods, and the same input gives the same bytes.
func TestImage(t *testing.T) {
	path, err := makeImage(t, beeline, hostStack(t, offline.LibraryName), "v0.0.0-test")
	must(t, err)
	again, err := makeImage(t, beeline, hostStack(t, offline.LibraryName), "v0.0.0-test")
	must(t, err)
	if !bytes.Equal(read(t, path), read(t, again)) {
		t.Error("two images of one program differ")
	}
	archive, err := tarball.ImageFromPath(path, nil)
	must(t, err)
	must(t, validate.Image(archive))
	folder := t.TempDir()
	must(t, untar(path, folder))
	index, err := layout.ImageIndexFromPath(folder)
	must(t, err)
	must(t, validate.Index(index))
	listed, err := index.IndexManifest()
	must(t, err)
	image, err := index.Image(listed.Manifests[0].Digest)
	must(t, err)
	for _, of := range []v1.Image{archive, image} {
		name, err := of.ConfigName()
		must(t, err)
		if want, _ := image.ConfigName(); name != want {
			t.Errorf("the docker archive has the configuration %s, the OCI layout %s", name, want)
		}
	}
	checkConfig(t, image)
	checkFiles(t, image)
}

func checkConfig(t *testing.T, image v1.Image) {
	t.Helper()
	config, err := image.ConfigFile()
	must(t, err)
	manifest, err := image.Manifest()
	must(t, err)
	const version = "org.opencontainers.image.version"
	if got := config.Config.Labels[version]; got != "v0.0.0-test" || manifest.Annotations[version] != got {
		t.Errorf("the version is %q in the labels and %q in the annotations", got, manifest.Annotations[version])
	}
	if got := strings.Join(config.Config.Entrypoint, " "); got != "/usr/local/bin/beeline" {
		t.Errorf("the entry point is %q", got)
	}
	if config.OS != "linux" || config.Config.StopSignal != "SIGTERM" {
		t.Errorf("for %s, stopped by %s", config.OS, config.Config.StopSignal)
	}
}

// checkFiles compares all files with what belongs there. They are root's, and no other user can write them.
func checkFiles(t *testing.T, image v1.Image) {
	t.Helper()
	files := mutate.Extract(image)
	defer files.Close()
	found := map[string][]byte{}
	for all := tar.NewReader(files); ; {
		h, err := all.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		if h.Uid != 0 || h.Gid != 0 || h.Mode&0o7022 != 0 || h.Typeflag != tar.TypeDir && h.Typeflag != tar.TypeReg {
			t.Errorf("%s: owner %d:%d, mode %o, type %c", h.Name, h.Uid, h.Gid, h.Mode, h.Typeflag)
		}
		if h.Typeflag == tar.TypeReg {
			found[h.Name], err = io.ReadAll(all)
			must(t, err)
		}
	}
	others, err := thirdParty()
	must(t, err)
	want := map[string]string{
		"usr/local/bin/beeline":             beeline,
		offline.LibraryPath[len("/"):]:      hostStack(t, offline.LibraryName),
		"usr/share/doc/beeline/LICENSE":     sources(t, "LICENSE"),
		"usr/share/doc/beeline/THIRD-PARTY": others,
	}
	for name, from := range want {
		if !bytes.Equal(found[name], read(t, from)) {
			t.Errorf("%s in the image is not %s", name, from)
		}
	}
	if len(found) != len(want) {
		t.Errorf("%d files in the image, want %d", len(found), len(want))
	}
}

// A program that needs a loader cannot run in the image.
func TestImageNeedsAStaticProgram(t *testing.T) {
	shell, err := filepath.EvalSymlinks("/bin/sh")
	must(t, err)
	if path, err := makeImage(t, shell, hostStack(t, offline.LibraryName), "v1"); err == nil || !strings.Contains(err.Error(), "dynamically linked") {
		t.Errorf("%s became the image %s: %v", shell, path, err)
	}
}

// What no program can preload does not become the library of an image.
func TestImageNeedsALibrary(t *testing.T) {
	for library, want := range map[string]string{beeline: "no shared library", sources(t, "LICENSE"): "bad magic number", "missing.so": "no such file"} {
		if path, err := makeImage(t, beeline, library, "v1"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("with the library %s: the image %s, %v", library, path, err)
		}
	}
}

// The library has no path of the machine, with which two builds of the same sources would differ.
func TestLibraryHasNoPaths(t *testing.T) {
	library := read(t, hostStack(t, offline.LibraryName))
	home, err := os.UserHomeDir()
	must(t, err)
	for _, folder := range []string{sources(t, "."), home + "/"} {
		if at := bytes.Index(library, []byte(folder)); at >= 0 {
			t.Errorf("the library has the path %.100q", library[at:])
		}
	}
}

// The same sources give the same program wherever they are.
func TestProgramIsReproducible(t *testing.T) {
	folder := t.TempDir()
	must(t, exec.Command("cp", "-a", "--reflink=auto", sources(t, "cmd"), sources(t, "internal"), sources(t, "go.mod"), sources(t, "go.sum"), folder).Run())
	var programs [2][]byte
	for i, from := range []string{sources(t, "."), folder} {
		out := filepath.Join(t.TempDir(), "beeline")
		build := exec.Command("go", "build", "-C", from, "-trimpath", "-buildvcs=false", "-ldflags", "-X main.version=v0", "-o", out, "./cmd/beeline")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if text, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		programs[i] = read(t, out)
	}
	if !bytes.Equal(programs[0], programs[1]) {
		t.Error("two builds of the same sources in two folders differ")
	}
}

func untar(path, folder string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for t := tar.NewReader(f); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		to := filepath.Join(folder, h.Name)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if err := writeFrom(t, to, 0o644); err != nil {
			return err
		}
	}
}
