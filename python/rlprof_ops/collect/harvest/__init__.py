"""After the job: find, check and name every report, and list all of it in the manifest."""
