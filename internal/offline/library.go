// SPDX-License-Identifier: Apache-2.0

package offline

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

// LibraryName is the file name of the host stack's preload library.
const LibraryName = "libbeeline_hoststack.so"

// LibraryPath is its path in the image.
const LibraryPath = "/usr/local/lib/" + LibraryName

// InstallLibrary copies the library into a directory. A program that starts meanwhile finds the previous file or
// the whole new one, and programs that have mapped the previous one keep it.
func InstallLibrary(from, dir string) (path string, size int64, err error) {
	source, err := os.Open(from)
	if errors.Is(err, os.ErrNotExist) {
		return "", 0, fmt.Errorf("there is no library at %s: --from names another path; `make hoststack` builds it, and the images of `make image` have it", from)
	}
	if err != nil {
		return "", 0, err
	}
	defer source.Close()
	path = filepath.Join(dir, LibraryName)
	size, err = replaceFile(path, source)
	if err != nil {
		return "", 0, fmt.Errorf("installing %s: %w", path, remedy(err, dir))
	}
	return path, size, nil
}

// replaceFile writes a file under a temporary name and renames it.
func replaceFile(path string, from io.Reader) (size int64, err error) {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return 0, err
	}
	defer dir.Close()
	f, err := os.CreateTemp(dir.Name(), "."+filepath.Base(path)+".*")
	if err != nil {
		return 0, err
	}
	defer os.Remove(f.Name())
	size, err = io.Copy(f, from)
	if err := errors.Join(err, f.Chmod(0o755), f.Sync(), f.Close()); err != nil {
		return 0, err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return 0, err
	}
	return size, dir.Sync()
}

// remedy adds to an error what to change.
func remedy(err error, dir string) error {
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("%w: create the directory, or mount a volume there", err)
	case errors.Is(err, syscall.EROFS):
		return fmt.Errorf("%w: mount a volume at %s, without readOnly", err, dir)
	case errors.Is(err, os.ErrPermission):
		// Not wrapped: no capability of the agent is missing.
		return fmt.Errorf("%v: let user %d write to %s", err, os.Geteuid(), dir)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%w: free some, or raise the limit of the volume at %s", err, dir)
	}
	return err
}
